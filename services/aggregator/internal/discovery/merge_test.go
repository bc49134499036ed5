package discovery

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func group(name string, versions ...string) apidiscoveryv2.APIGroupDiscovery {
	g := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, v := range versions {
		g.Versions = append(g.Versions, versionOf(v, "Next"))
	}
	return g
}

func versionOf(v, kind string) apidiscoveryv2.APIVersionDiscovery {
	return apidiscoveryv2.APIVersionDiscovery{
		Version: v, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Resources: []apidiscoveryv2.APIResourceDiscovery{{Resource: "things", ResponseKind: &metav1.GroupVersionKind{Kind: kind}}},
	}
}

func remoteSource(g, v string) Source {
	return Source{GroupVersion: schema.GroupVersion{Group: g, Version: v}, Discovery: versionOf(v, "Remote")}
}

func TestMerge(t *testing.T) {
	priorities := map[string]Priority{
		"own.k8s.io/v1": {Group: 20001}, "apps/v1": {17800, 15}, "autoscaling/v1": {17500, 15}, "autoscaling/v2": {17500, 30},
		"b.example.com/v1": {1000, 100}, "b.example.com/v2beta1": {1000, 100}, "b.example.com/v10": {1000, 100}, "b.example.com/v2": {1000, 100},
		"a.example.com/v1": {1000, 100}, "high.example.com/v1": {18000, 1},
	}
	tests := []struct {
		name      string
		knowledge Input
		want      []string
	}{
		{name: "nothing"},
		{
			name: "groups by priority then name, versions by priority then Kubernetes' order",
			knowledge: Input{
				Own:  []apidiscoveryv2.APIGroupDiscovery{group("own.k8s.io", "v1")},
				Next: []apidiscoveryv2.APIGroupDiscovery{group("b.example.com", "v2beta1", "v1", "v10", "v2"), group("a.example.com", "v1"), group("autoscaling", "v1", "v2"), group("apps", "v1")},
			},
			want: []string{"own.k8s.io/v1 Next Current", "apps/v1 Next Current", "autoscaling/v2 Next Current", "autoscaling/v1 Next Current",
				"a.example.com/v1 Next Current", "b.example.com/v10 Next Current", "b.example.com/v2 Next Current", "b.example.com/v1 Next Current", "b.example.com/v2beta1 Next Current"},
		},
		{
			name: "a remote version replaces the next tier's and raises the priority of its group",
			knowledge: Input{
				Remote: []Source{remoteSource("apps", "v1"), remoteSource("high.example.com", "v1")},
				Next:   []apidiscoveryv2.APIGroupDiscovery{group("apps", "v1", "v1beta1")},
			},
			want: []string{"high.example.com/v1 Remote Current", "apps/v1 Remote Current", "apps/v1beta1 Next Current"},
		},
		{
			name: "our own group is never replaced",
			knowledge: Input{
				Own:    []apidiscoveryv2.APIGroupDiscovery{group("own.k8s.io", "v1")},
				Remote: []Source{remoteSource("own.k8s.io", "v1")},
			},
			want: []string{"own.k8s.io/v1 Next Current"},
		},
		{
			name: "everything expected of a next tier that is down is stale",
			knowledge: Input{
				Own:      []apidiscoveryv2.APIGroupDiscovery{group("own.k8s.io", "v1")},
				Next:     []apidiscoveryv2.APIGroupDiscovery{group("apps", "v1")},
				Remote:   []Source{remoteSource("b.example.com", "v1")},
				NextDown: true,
				Expected: []schema.GroupVersion{{Group: "apps", Version: "v1"}, {Group: "autoscaling", Version: "v2"}},
			},
			want: []string{"own.k8s.io/v1 Next Current", "apps/v1 Next Stale", "autoscaling/v2 - Stale", "b.example.com/v1 Remote Current"},
		},
		{
			name: "an expected version is gone if the next tier answers without it",
			knowledge: Input{
				Next:     []apidiscoveryv2.APIGroupDiscovery{group("apps", "v1")},
				Expected: []schema.GroupVersion{{Group: "autoscaling", Version: "v2"}},
			},
			want: []string{"apps/v1 Next Current"},
		},
		{
			name: "an expected version stays while the next tier has not heard from the last one",
			knowledge: Input{
				Next:     []apidiscoveryv2.APIGroupDiscovery{group("apps", "v1")},
				Expected: []schema.GroupVersion{{Group: "apps", Version: "v1"}, {Group: "apiextensions.k8s.io", Version: "v1"}, {Group: "a.example.com", Version: "v1"}},
			},
			want: []string{"apps/v1 Next Current", "a.example.com/v1 - Stale", "apiextensions.k8s.io/v1 - Stale"},
		},
		{
			name: "an expected version is gone if the last tier does not have it",
			knowledge: Input{
				Next:     []apidiscoveryv2.APIGroupDiscovery{group("apps", "v1"), group("apiextensions.k8s.io", "v1")},
				Expected: []schema.GroupVersion{{Group: "apiextensions.k8s.io", Version: "v1"}, {Group: "a.example.com", Version: "v1"}},
			},
			want: []string{"apps/v1 Next Current", "apiextensions.k8s.io/v1 Next Current"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.knowledge.Priority = func(gv schema.GroupVersion) Priority { return priorities[gv.String()] }
			var got []string
			for _, g := range Merge(test.knowledge) {
				for _, v := range g.Versions {
					kind := "-"
					if len(v.Resources) > 0 {
						kind = v.Resources[0].ResponseKind.Kind
					}
					got = append(got, fmt.Sprintf("%s/%s %s %s", g.Name, v.Version, kind, v.Freshness))
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// The groups of the next tier are merged again when it is back.
func TestMergeDoesNotModifyItsInput(t *testing.T) {
	next := []apidiscoveryv2.APIGroupDiscovery{group("apps", "v1")}
	Merge(Input{Next: next, NextDown: true, Priority: func(schema.GroupVersion) Priority { return Priority{} }})
	if got := next[0].Versions[0].Freshness; got != apidiscoveryv2.DiscoveryFreshnessCurrent {
		t.Errorf("the source is marked %s", got)
	}
}

func TestParseAggregated(t *testing.T) {
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	body := `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"r","subresources":[{"subresource":"s"}]}]}]}]}`
	groups, err := parseAggregated(v2, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r := groups[0].Versions[0].Resources[0]
	if r.ResponseKind == nil || r.Subresources[0].ResponseKind == nil {
		t.Error("client-go v0.26.0 panics at a resource without a kind")
	}
	for name, test := range map[string]struct{ contentType, body string }{
		"a legacy list":   {"application/json", `{"kind":"APIGroupList"}`},
		"another version": {"application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList", body},
		"truncated":       {v2, body[:40]},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseAggregated(test.contentType, []byte(test.body)); err == nil {
				t.Error("got no error")
			}
		})
	}
}

// BenchmarkMerge merges the discovery of a cluster with 300 CRDs and computes its ETag:
//
//	go test -bench Merge ./services/aggregator/internal/discovery
func BenchmarkMerge(b *testing.B) {
	var next []apidiscoveryv2.APIGroupDiscovery
	for i := range 320 {
		next = append(next, group(fmt.Sprintf("group%d.example.com", i), "v1"))
	}
	knowledge := Input{Next: next, Priority: func(schema.GroupVersion) Priority { return Priority{Group: 1000, Version: 100} }}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := newDocument(Merge(knowledge)); err != nil {
			b.Fatal(err)
		}
	}
}

package apiservices

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"triune.dev/services/aggregator/internal/remote"
)

func apiService(group, version string, groupPriority, versionPriority int32, service string) *apiregistrationv1.APIService {
	a := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec:       apiregistrationv1.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: groupPriority, VersionPriority: versionPriority},
	}
	if service != "" {
		a.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: service}
	}
	return a
}

func TestGroupVersionOf(t *testing.T) {
	for path, want := range map[string]string{
		"/apis/g.io/v1":              "g.io/v1",
		"/apis/g.io/v1/":             "g.io/v1",
		"/apis/g.io/v1/namespaces/x": "g.io/v1",
		"/apis/g.io":                 "",
		"/apis/g.io/":                "",
		"/apis/":                     "",
		"/apis":                      "",
		"/apis//v1/x":                "",
		"/api":                       "v1",
		"/api/v1/pods":               "v1",
		"/apiv1":                     "",
		"/apisx/g/v":                 "",
		"/healthz":                   "",
		"":                           "",
	} {
		gv, ok := GroupVersionOf(path)
		if gv.String() != want || ok != (want != "") {
			t.Errorf("%q: got %q, %t, want %q", path, gv, ok, want)
		}
	}
}

func TestSnapshotOrdersGroupsLikeKubeAPIServer(t *testing.T) {
	s := Build([]*apiregistrationv1.APIService{
		apiService("", "v1", 18000, 1, ""),
		apiService("b.io", "v1", 1000, 100, ""),
		apiService("a.io", "v1beta1", 1000, 100, ""),
		apiService("a.io", "v1", 1000, 100, ""),
		apiService("a.io", "v2alpha1", 1000, 100, ""),
		apiService("apps", "v1", 17800, 15, ""),
		apiService("remote.io", "v1", 500, 1, "x"),
		apiService("remote.io", "v2", 17900, 1, "x"),
	}, nil, func(a *apiregistrationv1.APIService) *remote.Backend { return remote.New(a, remote.Network{}) })
	var got []string
	for _, g := range s.Groups() {
		line := g.Name + ":"
		for _, v := range g.Versions {
			line += " " + v.GroupVersion
		}
		got = append(got, fmt.Sprintf("%s (%s)", line, g.PreferredVersion.Version))
	}
	// Groups of equal priority are ordered by the name of the APIService, which starts with the
	// version.
	want := []string{"remote.io: remote.io/v2 remote.io/v1 (v2)", "apps: apps/v1 (v1)", "a.io: a.io/v1 a.io/v1beta1 a.io/v2alpha1 (v1)", "b.io: b.io/v1 (v1)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(s.Backends()) != 2 || s.Backend(schema.GroupVersion{Group: "apps", Version: "v1"}) != nil {
		t.Errorf("backends: %v", s.Backends())
	}
	if _, ok := s.Group(""); ok {
		t.Error("the legacy group is not one of /apis")
	}
}

// A new table must not interrupt requests of the previous one.
func TestUnchangedBackendsAreReused(t *testing.T) {
	same, changed := apiService("same.io", "v1", 1, 1, "x"), apiService("changed.io", "v1", 1, 1, "x")
	made := 0
	backend := func(a *apiregistrationv1.APIService) *remote.Backend {
		made++
		return remote.New(a, remote.Network{})
	}
	first := Build([]*apiregistrationv1.APIService{same, changed}, nil, backend)
	second := Build([]*apiregistrationv1.APIService{same, changed.DeepCopy()}, first, backend)
	gv := schema.GroupVersion{Group: "same.io", Version: "v1"}
	if first.Backend(gv) != second.Backend(gv) || made != 3 {
		t.Errorf("made %d backends, want 3", made)
	}
}

// BenchmarkBuild builds the table of a cluster with 300 CRDs, each in its own group:
//
//	go test -bench Build ./services/aggregator/internal/apiservices
func BenchmarkBuild(b *testing.B) {
	var all []*apiregistrationv1.APIService
	for i := range 320 {
		all = append(all, apiService(fmt.Sprintf("group%d.example.com", i), "v1", 1000, 100, ""))
	}
	b.ReportAllocs()
	for b.Loop() {
		Build(all, nil, nil)
	}
}

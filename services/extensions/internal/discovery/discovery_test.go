package discovery

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"

	"triune.dev/services/extensions/internal/scheme"
)

func definition(plural, kind string, change ...func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{
		Plural: plural, Singular: plural[:len(plural)-1], Kind: kind, ListKind: kind + "List",
		ShortNames: []string{plural[:1]}, Categories: []string{"all"},
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Names: names, Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names},
	}
	setCondition(crd, apiextensionsv1.Established)
	for _, c := range change {
		c(crd)
	}
	return crd
}

func setCondition(crd *apiextensionsv1.CustomResourceDefinition, t apiextensionsv1.CustomResourceDefinitionConditionType) {
	crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: t, Status: apiextensionsv1.ConditionTrue})
}

func versions(names ...string) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions = nil
		for i, name := range names {
			crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: i == 0})
		}
	}
}

func TestDescribeOneResource(t *testing.T) {
	crd := definition("widgets", "Widget", func(c *apiextensionsv1.CustomResourceDefinition) {
		c.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale:  &apiextensionsv1.CustomResourceSubresourceScale{},
		}
	})
	got := describe("example.com", []*apiextensionsv1.CustomResourceDefinition{crd})
	kind := &metav1.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	want := group{name: "example.com", versions: []version{{
		name: "v1",
		resources: []metav1.APIResource{
			{
				Name: "widgets", SingularName: "widget", Namespaced: true, Kind: "Widget", Verbs: objectVerbs,
				ShortNames: []string{"w"}, Categories: []string{"all"},
				StorageVersionHash: discovery.StorageVersionHash("example.com", "v1", "Widget"),
			},
			{Name: "widgets/status", Namespaced: true, Kind: "Widget", Verbs: subresourceVerbs},
			{Name: "widgets/scale", Namespaced: true, Kind: "Scale", Group: "autoscaling", Version: "v1", Verbs: subresourceVerbs},
		},
		aggregated: []apidiscoveryv2.APIResourceDiscovery{{
			Resource: "widgets", SingularResource: "widget", Scope: apidiscoveryv2.ScopeNamespace, ResponseKind: kind,
			Verbs: objectVerbs, ShortNames: []string{"w"}, Categories: []string{"all"},
			Subresources: []apidiscoveryv2.APISubresourceDiscovery{
				{Subresource: "status", ResponseKind: kind, Verbs: subresourceVerbs},
				{Subresource: "scale", ResponseKind: &metav1.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, Verbs: subresourceVerbs},
			},
		}},
	}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(group{}, version{})); diff != "" {
		t.Errorf("group (-want +got):\n%s", diff)
	}
}

func TestDescribeGroup(t *testing.T) {
	notEstablished := definition("gadgets", "Gadget")
	notEstablished.Status.Conditions = nil
	terminating := definition("widgets", "Widget")
	setCondition(terminating, apiextensionsv1.Terminating)
	tests := []struct {
		name string
		crds []*apiextensionsv1.CustomResourceDefinition
		want map[string][]string // resources with their verbs' number, by version
		in   []string            // versions in order
	}{
		{"no CRD", nil, map[string][]string{}, nil},
		{"a CRD that is not established", []*apiextensionsv1.CustomResourceDefinition{notEstablished}, map[string][]string{}, nil},
		{
			"versions by preference", []*apiextensionsv1.CustomResourceDefinition{definition("widgets", "Widget", versions("v1beta1", "v2", "v10", "v1"))},
			map[string][]string{"v1": {"widgets"}, "v2": {"widgets"}, "v10": {"widgets"}, "v1beta1": {"widgets"}},
			[]string{"v10", "v2", "v1", "v1beta1"},
		},
		{
			"resources by name", []*apiextensionsv1.CustomResourceDefinition{
				definition("widgets", "Widget"), definition("apples", "Apple", versions("v1", "v2")),
			},
			map[string][]string{"v1": {"apples", "widgets"}, "v2": {"apples"}},
			[]string{"v2", "v1"},
		},
		{
			"a version that is not served", []*apiextensionsv1.CustomResourceDefinition{
				definition("widgets", "Widget", versions("v1", "v2"), func(c *apiextensionsv1.CustomResourceDefinition) {
					c.Spec.Versions[1].Served = false
				}),
			},
			map[string][]string{"v1": {"widgets"}},
			[]string{"v1"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := map[string][]string{}
			var order []string
			for _, v := range describe("example.com", test.crds).versions {
				order = append(order, v.name)
				for _, r := range v.resources {
					got[v.name] = append(got[v.name], r.Name)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.in, order); diff != "" {
				t.Errorf("versions (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a terminating CRD loses the verbs that write", func(t *testing.T) {
		g := describe("example.com", []*apiextensionsv1.CustomResourceDefinition{terminating})
		verbs := g.versions[0].resources[0].Verbs
		if slices.Contains(verbs, "create") || slices.Contains(verbs, "patch") || !slices.Contains(verbs, "delete") {
			t.Errorf("verbs %v", verbs)
		}
	})
}

// A CRD appears in discovery, changes and disappears.
func TestPublisher(t *testing.T) {
	groups := discovery.NewRootAPIsHandler(discovery.DefaultAddresses{}, scheme.Codecs)
	resources := aggregated.NewResourceManager("apis")
	p := NewPublisher(groups, resources.WithSource(aggregated.CRDSource))
	check := func(step string, wantGroups, wantVersions []string) {
		t.Helper()
		if diff := cmp.Diff(wantGroups, groupNames(t, groups)); diff != "" {
			t.Errorf("%s: /apis (-want +got):\n%s", step, diff)
		}
		for _, v := range []string{"v1", "v2"} {
			handler, found := p.Find("/apis/example.com/" + v)
			if want := slices.Contains(wantVersions, v); found != want {
				t.Errorf("%s: /apis/example.com/%s exists: %v, want %v", step, v, found, want)
			} else if found {
				var list metav1.APIResourceList
				get(t, handler, "/apis/example.com/"+v, &list)
				if list.GroupVersion != "example.com/"+v || len(list.APIResources) == 0 {
					t.Errorf("%s: document of %s: %+v", step, v, list)
				}
			}
		}
		handler, found := p.Find("/apis/example.com/")
		if found != (len(wantVersions) > 0) {
			t.Errorf("%s: /apis/example.com exists: %v", step, found)
		} else if found {
			var group metav1.APIGroup
			get(t, handler, "/apis/example.com", &group)
			if group.PreferredVersion.Version != wantVersions[0] || len(group.Versions) != len(wantVersions) {
				t.Errorf("%s: group %+v, want versions %v", step, group, wantVersions)
			}
		}
		if got := aggregatedVersions(t, resources); !slices.Equal(got, wantVersions) {
			t.Errorf("%s: aggregated versions %v, want %v", step, got, wantVersions)
		}
	}
	pending := definition("widgets", "Widget")
	pending.Status.Conditions = nil
	check("before", []string{}, nil)
	p.Put(pending)
	check("not established", []string{}, nil)
	p.Put(definition("widgets", "Widget"))
	check("established", []string{"example.com"}, []string{"v1"})
	p.Put(definition("widgets", "Widget", versions("v1", "v2")))
	check("another version", []string{"example.com"}, []string{"v2", "v1"})
	p.Put(definition("gadgets", "Gadget"))
	p.Put(definition("widgets", "Widget", versions("v2")))
	check("a version of another CRD remains", []string{"example.com"}, []string{"v2", "v1"})
	p.Remove(definition("gadgets", "Gadget"))
	check("a version gone", []string{"example.com"}, []string{"v2"})
	p.Remove(definition("widgets", "Widget"))
	check("removed", []string{}, nil)
	if _, found := p.Find("/api/example.com"); found {
		t.Error("found a document outside /apis")
	}
}

func get(t *testing.T, handler http.Handler, path string, into any) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
}

func groupNames(t *testing.T, handler http.Handler) []string {
	t.Helper()
	var list metav1.APIGroupList
	get(t, handler, "/apis", &list)
	names := []string{}
	for _, g := range list.Groups {
		names = append(names, g.Name)
	}
	return names
}

func aggregatedVersions(t *testing.T, handler http.Handler) []string {
	t.Helper()
	w := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, "/apis", nil)
	req.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	handler.ServeHTTP(w, req)
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatalf("aggregated discovery: %v: %s", err, w.Body)
	}
	var names []string
	for _, g := range list.Items {
		for _, v := range g.Versions {
			names = append(names, v.Version)
		}
	}
	return names
}

package resources

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Storages that lack a required interface.
type (
	noScope    struct{ gets }
	noSingular struct {
		scoped
		gets
	}
	unknownKind struct{ named }
	unknownList struct {
		named
		lists
	}
	resetTwice struct {
		named
		gets
		updates
	}
)

func (noScope) New() runtime.Object { return &example.Pod{} }
func (noScope) Destroy()            {}

type scoped struct{}

func (scoped) New() runtime.Object   { return &example.Pod{} }
func (scoped) Destroy()              {}
func (scoped) NamespaceScoped() bool { return true }

func (unknownKind) New() runtime.Object     { return &example.ReplicaSet{} }
func (unknownList) NewList() runtime.Object { return &metav1.Table{} }

func (resetTwice) GetResetFields() fields { return nil }
func (resetTwice) GetResetFieldsFilter() map[fieldpath.APIVersion]fieldpath.Filter {
	return nil
}

func TestInstallRefusesIncompleteStorages(t *testing.T) {
	pods := full{named: named{"pod", true}}
	tests := map[string]struct {
		storage map[string]rest.Storage
		want    string // part of the error
	}{
		"upper case":                      {map[string]rest.Storage{"Pods": pods}, "lower case"},
		"subresource of a subresource":    {map[string]rest.Storage{"pods": pods, "pods/a/b": pods}, "no subresources"},
		"subresource without its parent":  {map[string]rest.Storage{"pods/status": pods}, `parent "pods"`},
		"no scope":                        {map[string]rest.Storage{"pods": noScope{}}, "scope"},
		"no singular name":                {map[string]rest.Storage{"pods": noSingular{}}, "singular"},
		"kind that the version lacks":     {map[string]rest.Storage{"pods": unknownKind{named{"pod", true}}}, "ReplicaSet"},
		"list kind that the scheme lacks": {map[string]rest.Storage{"pods": unknownList{named: named{"pod", true}}}, "list"},
		"reset fields twice":              {map[string]rest.Storage{"pods": resetTwice{named: named{"pod", true}}}, "reset fields twice"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			table := newTable()
			err := table.Install(GroupPrefix, groupInfo(examplev1.SchemeGroupVersion, test.storage))
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "example.apiserver.k8s.io/v1") {
				t.Errorf("got %v, want an error with %q that names the group-version", err, test.want)
			}
			if len(table.Groups()) != 0 || len(table.Roots()) != 0 {
				t.Errorf("something was installed: %v", table.Roots())
			}
		})
	}
}

func TestInstallTwiceAndWithoutVersions(t *testing.T) {
	table := newTable()
	info := groupInfo(examplev1.SchemeGroupVersion, storages())
	if err := table.Install(GroupPrefix, info); err != nil {
		t.Fatal(err)
	}
	if err := table.Install(GroupPrefix, info); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("installing twice: %v", err)
	}
	if err := table.Install(GroupPrefix, groupInfo(oldGroup, nil)); err != nil {
		t.Errorf("a group whose versions are all disabled: %v", err)
	}
	empty := groupInfo(oldGroup, nil)
	empty.PrioritizedVersions = nil
	if err := table.Install(GroupPrefix, empty); err == nil {
		t.Error("a group without versions was installed")
	}
	if diff := cmp.Diff([]string{"/apis/example.apiserver.k8s.io/v1"}, table.Roots()); diff != "" {
		t.Error(diff)
	}
	if groups := table.Groups(); len(groups) != 1 || groups[0].Name != "example.apiserver.k8s.io" || len(groups[0].Versions) != 1 {
		t.Errorf("groups are %+v", groups)
	}
}

func TestLegacyGroupHasNoNameInItsRoot(t *testing.T) {
	table := newTable()
	legacy := groupInfo(schema.GroupVersion{Version: "v1"}, map[string]rest.Storage{"gadgets": gadgets{named{"gadget", false}}})
	if err := table.Install(LegacyPrefix, legacy); err != nil {
		t.Fatal(err)
	}
	version, ok := table.Version("/api/v1")
	if !ok {
		t.Fatalf("roots are %v", table.Roots())
	}
	if got := (call{method: http.MethodGet, path: "/api/v1/gadgets/g"}).to(withServerContext(version)); got.Code != http.StatusOK {
		t.Errorf("got %+v", got)
	}
}

// destroyed counts calls of Destroy.
type destroyed struct {
	readOnly
	times *int
}

func (d destroyed) Destroy() { *d.times++ }

func TestDestroyReleasesEveryStorageOnce(t *testing.T) {
	var times int
	table := newTable()
	storage := map[string]rest.Storage{"pods": destroyed{readOnly{named: named{"pod", true}}, &times}}
	if err := table.Install(GroupPrefix, groupInfo(examplev1.SchemeGroupVersion, storage)); err != nil {
		t.Fatal(err)
	}
	table.Destroy()
	if times != 1 {
		t.Errorf("destroyed %d times", times)
	}
}

func TestDiscoveryDescribesResourcesAsUpstream(t *testing.T) {
	for gv, storage := range map[schema.GroupVersion]map[string]rest.Storage{
		examplev1.SchemeGroupVersion: storages(),
		oldGroup:                     {"gadgets": gadgets{named{"gadget", false}}},
	} {
		answer := call{method: http.MethodGet, path: GroupPrefix + "/" + gv.String()}.to(upstream(t, gv, storage))
		var want metav1.APIResourceList
		if err := json.Unmarshal([]byte(answer.Body), &want); err != nil {
			t.Fatal(err)
		}
		var got []metav1.APIResource
		for _, resource := range installed(t, gv, storage).Resources() {
			got = append(got, resource.Discovery)
		}
		if len(got) != len(storage) {
			t.Errorf("%s: %d resources of %d", gv, len(got), len(storage))
		}
		if diff := cmp.Diff(want.APIResources, got); diff != "" {
			t.Errorf("%s (-k8s.io/apiserver +ours):\n%s", gv, diff)
		}
	}
}

// TestRoutesOfAResource lists the routes of some resources, from which OpenAPI is generated.
func TestRoutesOfAResource(t *testing.T) {
	version := installed(t, examplev1.SchemeGroupVersion, storages())
	tests := map[string][]string{
		"componentstatuses": {"GET GET componentstatuses/{name} resource"},
		"pods/status": {
			"GET GET namespaces/{namespace}/pods/{name}/status resource",
			"PUT PUT namespaces/{namespace}/pods/{name}/status resource",
			"PATCH PATCH namespaces/{namespace}/pods/{name}/status resource",
		},
		"pods/binding": {"POST POST namespaces/{namespace}/pods/{name}/binding resource"},
		"pods/attach": {
			"CONNECT GET namespaces/{namespace}/pods/{name}/attach resource",
			"CONNECT POST namespaces/{namespace}/pods/{name}/attach resource",
		},
		"pods": {
			"LIST GET namespaces/{namespace}/pods namespace",
			"POST POST namespaces/{namespace}/pods resource",
			"DELETECOLLECTION DELETE namespaces/{namespace}/pods namespace",
			"WATCHLIST GET watch/namespaces/{namespace}/pods namespace",
			"GET GET namespaces/{namespace}/pods/{name} resource",
			"PUT PUT namespaces/{namespace}/pods/{name} resource",
			"PATCH PATCH namespaces/{namespace}/pods/{name} resource",
			"DELETE DELETE namespaces/{namespace}/pods/{name} resource",
			"WATCH GET watch/namespaces/{namespace}/pods/{name} resource",
			"LIST GET pods cluster",
			"WATCHLIST GET watch/pods cluster",
		},
	}
	for key, want := range tests {
		resource, ok := version.Resource(key)
		if !ok {
			t.Errorf("no %s", key)
			continue
		}
		var got []string
		for _, route := range resource.Routes {
			got = append(got, strings.Join([]string{route.Verb, route.Method, route.Path, route.MetricsScope}, " "))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	if _, ok := version.Resource("gizmos"); ok {
		t.Error("there are gizmos")
	}
	if !slices.IsSortedFunc(version.Resources(), func(a, b *Resource) int { return strings.Compare(a.Key(), b.Key()) }) {
		t.Error("resources are not sorted")
	}
}

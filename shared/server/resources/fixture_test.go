package resources

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	exampleinstall "k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// The storages of the tests have no state, so that equal requests have equal answers.

// named implements the methods of every storage.
type named struct {
	singular   string
	namespaced bool
}

func (named) New() runtime.Object       { return &example.Pod{} }
func (named) Destroy()                  {}
func (n named) NamespaceScoped() bool   { return n.namespaced }
func (n named) GetSingularName() string { return n.singular }

type gets struct{}

func (gets) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return pod(name), nil
}

func pod(name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"}}
}

type lists struct{}

func (lists) NewList() runtime.Object { return &example.PodList{} }

func (lists) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	return &example.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []example.Pod{*pod("a"), *pod("b")}}, nil
}

func (lists) ConvertToTable(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error) {
	return &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string"}}}, nil
}

type watches struct{}

// Watch returns a watch that ends after one event.
func (watches) Watch(context.Context, *metainternalversion.ListOptions) (watch.Interface, error) {
	events := watch.NewFakeWithChanSize(1, false)
	events.Add(pod("a"))
	events.Stop()
	return events, nil
}

type creates struct{}

func (creates) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	if err := validate(ctx, obj); err != nil {
		return nil, err
	}
	return timeless(obj), nil
}

// timeless removes the times of managed fields, the only difference between two answers.
func timeless(obj runtime.Object) runtime.Object {
	fields := obj.(metav1.ObjectMetaAccessor).GetObjectMeta().GetManagedFields()
	for i := range fields {
		fields[i].Time = nil
	}
	return obj
}

type updates struct{}

func (updates) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc,
	validate rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	old := pod(name)
	obj, err := objInfo.UpdatedObject(ctx, old)
	if err != nil {
		return nil, false, err
	}
	if err := validate(ctx, obj, old); err != nil {
		return nil, false, err
	}
	return timeless(obj), false, nil
}

type deletes struct{}

func (deletes) Delete(_ context.Context, name string, _ rest.ValidateObjectFunc, _ *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return pod(name), true, nil
}

type deletesCollections struct{}

func (deletesCollections) DeleteCollection(context.Context, rest.ValidateObjectFunc, *metav1.DeleteOptions, *metainternalversion.ListOptions) (runtime.Object, error) {
	return &example.PodList{}, nil
}

// full has every verb; it resembles a registry.Store.
type full struct {
	named
	gets
	lists
	watches
	creates
	updates
	deletes
	deletesCollections
}

func (full) ShortNames() []string   { return []string{"f"} }
func (full) Categories() []string   { return []string{"all"} }
func (full) GetResetFields() fields { return fields{"example.apiserver.k8s.io/v1": statusField} }
func (full) StorageVersion() runtime.GroupVersioner {
	return examplev1.SchemeGroupVersion
}

type fields = map[fieldpath.APIVersion]*fieldpath.Set

var statusField = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))

// readOnly supports only get.
type readOnly struct {
	named
	gets
}

// status is a subresource with get and update.
type status struct {
	named
	gets
	updates
}

// connects is a proxy.
type connects struct {
	named
	methods []string
	subpath bool
}

func (c connects) ConnectMethods() []string { return c.methods }
func (c connects) NewConnectOptions() (runtime.Object, bool, string) {
	if c.subpath {
		return &example.Pod{}, true, "path"
	}
	return nil, false, ""
}

func (c connects) Connect(_ context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "%s %s", req.Method, name)
	}), nil
}

// binding is created at an item.
type binding struct{ named }

func (binding) Create(_ context.Context, name string, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	obj.(*example.Pod).Labels = map[string]string{"at": name}
	return timeless(obj), nil
}

// log is text; its options are in the query.
type log struct{ named }

func (log) Get(_ context.Context, name string, _ runtime.Object) (runtime.Object, error) {
	return pod(name), nil
}
func (log) NewGetOptions() (runtime.Object, bool, string) { return &example.Pod{}, false, "" }
func (log) ProducesMIMETypes(verb string) []string {
	if verb == http.MethodGet {
		return []string{"text/plain"}
	}
	return nil
}
func (log) ProducesObject(string) any                  { return "" }
func (log) OverrideMetricsVerb(verb string) (_ string) { return "GETLOG" }

// gadget is a kind whose version is deprecated. It is its own internal form.
type gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

func (g *gadget) DeepCopyObject() runtime.Object {
	return &gadget{g.TypeMeta, *g.ObjectMeta.DeepCopy()}
}
func (*gadget) APILifecycleIntroduced() (major, minor int) { return 1, 1 }
func (*gadget) APILifecycleDeprecated() (major, minor int) { return 1, 2 }
func (*gadget) APILifecycleRemoved() (major, minor int)    { return 2, 0 }
func (*gadget) APILifecycleReplacement() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: oldGroup.Group, Version: "v2", Kind: "Gadget"}
}

type gadgets struct{ named }

func (gadgets) New() runtime.Object { return &gadget{} }
func (gadgets) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return &gadget{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

var (
	oldGroup = schema.GroupVersion{Group: "old.example.com", Version: "v1"}
	scheme   = func() *runtime.Scheme {
		scheme := runtime.NewScheme()
		exampleinstall.Install(scheme)
		scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
		scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
		for _, version := range []string{runtime.APIVersionInternal, oldGroup.Version} {
			for _, group := range []string{oldGroup.Group, ""} {
				scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: group, Version: version, Kind: "Gadget"}, &gadget{})
			}
		}
		metav1.AddToGroupVersion(scheme, oldGroup)
		metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
		scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{})
		return scheme
	}()
	codecs         = serializer.NewCodecFactory(scheme)
	parameterCodec = runtime.NewParameterCodec(scheme)
)

var allMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}

// storages are those of the group-version under test.
func storages() map[string]rest.Storage {
	pods := named{"pod", true}
	nodes := named{"node", false}
	return map[string]rest.Storage{
		"pods":                full{named: pods},
		"pods/status":         status{named: pods},
		"pods/binding":        binding{pods},
		"pods/log":            log{pods},
		"pods/attach":         connects{named: pods, methods: []string{http.MethodGet, http.MethodPost}},
		"pods/proxy":          connects{named: pods, methods: allMethods, subpath: true},
		"nodes":               full{named: nodes},
		"nodes/proxy":         connects{named: nodes, methods: allMethods, subpath: true},
		"componentstatuses":   readOnly{named: named{"componentstatus", false}},
		"namespaces":          full{named: named{"namespace", false}},
		"namespaces/status":   status{named: named{"namespace", false}},
		"namespaces/finalize": status{named: named{"namespace", false}},
	}
}

func groupInfo(gv schema.GroupVersion, storage map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, scheme, parameterCodec, codecs)
	info.PrioritizedVersions = []schema.GroupVersion{gv}
	info.VersionedResourcesStorageMap = map[string]map[string]rest.Storage{gv.Version: storage}
	return &info
}

func newTable() *Table {
	return New(Config{
		Authorizer:          authorizerfactory.NewAlwaysAllowAuthorizer(),
		Equivalents:         runtime.NewEquivalentResourceRegistry(),
		TypeConverter:       func(schema.GroupVersion) managedfields.TypeConverter { return managedfields.NewDeducedTypeConverter() },
		MinRequestTimeout:   time.Minute,
		MaxRequestBodyBytes: 1 << 10,
		Major:               1,
		Minor:               36,
	})
}

// installed returns the table with one group-version in it.
func installed(t testing.TB, gv schema.GroupVersion, storage map[string]rest.Storage) *GroupVersion {
	t.Helper()
	table := newTable()
	if err := table.Install(GroupPrefix, groupInfo(gv, storage)); err != nil {
		t.Fatal(err)
	}
	version, ok := table.Version(GroupPrefix + "/" + gv.String())
	if !ok {
		t.Fatalf("%s is not installed; installed are %v", gv, table.Roots())
	}
	return version
}

package reads

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/example"
	exampleinstall "k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/storage/readindex"
	"triune.dev/shared/storage/render"
	"triune.dev/shared/testing/etcdtest"
)

// feed is the event log of the test: one watch of etcd.
type feed struct {
	*kv.Client
	done chan struct{}
}

func (f *feed) Since(context.Context, string, int64, int64, func(kv.Event) error) error {
	return &kv.CompactedError{}
}

// run feeds a space until the context is done.
func (f *feed) run(ctx context.Context, space *bytecache.Space, from int64) {
	defer close(f.done)
	space.Reset(from)
	s := f.Watch(ctx, kv.WatchOptions{Key: "/registry/", Prefix: true, After: from})
	for resp := range s.C() {
		batch, err := s.Accept(resp)
		if err != nil {
			return
		}
		if len(batch.Events) > 0 || batch.Progress {
			space.Apply(batch)
		}
	}
}

// world is an etcd, a space that it feeds, and resources.
type world struct {
	etcd   *clientv3.Client
	client *kv.Client
	space  *bytecache.Space
	prober *readindex.Prober
}

func newWorld(t testing.TB, change ...func(*bytecache.Config)) *world {
	t.Helper()
	// Without gRPC between them, client and server can wait for each other for ever when
	// many watches end at once.
	etcd := etcdtest.Start(t).Dial(t)
	client := kv.New(etcd)
	f := &feed{Client: client, done: make(chan struct{})}
	config := bytecache.Config{Origin: client, Feed: f}
	for _, c := range change {
		c(&config)
	}
	space := bytecache.New(config)
	revision, err := client.Revision(t.Context(), "/registry/")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go f.run(ctx, space, revision)
	t.Cleanup(func() {
		cancel()
		<-f.done
	})
	return &world{etcd: etcd, client: client, space: space, prober: readindex.New(client, "/registry/")}
}

// resource is one resource, served by upstream's handlers and by ours.
type resource struct {
	*world
	path     string // of the collection of all namespaces
	store    *registry.Store
	scope    *handlers.RequestScope
	version  *render.Version
	cache    *bytecache.Cache
	handlers *Handlers

	upstream, ours *httptest.Server
	fallbacks      atomic.Int64
}

// kindConfig describes a resource.
type kindConfig struct {
	gvr        schema.GroupVersionResource
	kind       string
	namespaced bool
	codec      runtime.Codec
	newFunc    func() runtime.Object
	newList    func() runtime.Object
	scope      *handlers.RequestScope
	attributes storage.AttrFunc
	tables     rest.TableConvertor
	uncached   bool
	open       func(ctx context.Context, key string, stored []byte) ([]byte, bool, error)
}

func (w *world) add(t testing.TB, c kindConfig) *resource {
	t.Helper()
	name := c.gvr.GroupResource()
	prefix := "/" + name.Resource
	if c.gvr.Group != "" {
		prefix = "/" + c.gvr.Group + "/" + name.Resource
	}
	raw, err := etcdstore.New(etcdstore.Config{
		Client: w.client, Codec: c.codec, NewFunc: c.newFunc, Prefix: "/registry", ResourcePrefix: prefix, GroupResource: name, Uncached: c.uncached,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &resource{world: w, scope: c.scope}
	strategy := strategy{ObjectTyper: c.scope.Typer, NameGenerator: names.SimpleNameGenerator, namespaced: c.namespaced}
	if c.tables == nil {
		c.tables = rest.NewDefaultTableConvertor(name)
	}
	attributes := c.attributes
	if attributes == nil {
		attributes = storage.DefaultNamespaceScopedAttr
		if !c.namespaced {
			attributes = storage.DefaultClusterScopedAttr
		}
	}
	r.store = &registry.Store{
		NewFunc: c.newFunc, NewListFunc: c.newList, DefaultQualifiedResource: name, SingularQualifiedResource: name,
		CreateStrategy: strategy, UpdateStrategy: strategy, DeleteStrategy: strategy, TableConvertor: c.tables,
		KeyRootFunc: func(ctx context.Context) string {
			if c.namespaced {
				return registry.NamespaceKeyRootFunc(ctx, prefix)
			}
			return prefix
		},
		KeyFunc: func(ctx context.Context, name string) (string, error) {
			if c.namespaced {
				return registry.NamespaceKeyFunc(ctx, prefix, name)
			}
			return registry.NoNamespaceKeyFunc(ctx, prefix, name)
		},
		ObjectNameFunc: func(obj runtime.Object) (string, error) {
			m, err := meta.Accessor(obj)
			if err != nil {
				return "", err
			}
			return m.GetName(), nil
		},
		PredicateFunc: func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attributes}
		},
		Storage: registry.DryRunnableStorage{Storage: raw, Codec: c.codec},
	}
	c.scope.TableConvertor = c.tables
	r.version, err = render.New(render.Config{
		Codec: c.codec, New: c.newFunc, NewList: c.newList, Serializer: c.scope.Serializer, Kind: c.scope.Kind,
		Attributes: attributes, Budget: w.space.Budget(),
	})
	if err != nil {
		t.Fatal(err)
	}
	plain := new(render.Labels)
	r.cache, err = w.space.Cache("/registry"+prefix+"/", bytecache.Options{
		Decrypt: c.open, Labels: r.version.Labels, Fields: r.version.Fields, Label: plain.ValueOfEntry, LabelFilter: plain.Filter,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.handlers, err = New(Config{
		Cache: r.cache, Version: r.version, Scope: c.scope, Consistency: w.prober, Prefix: "/registry" + prefix,
		Namespaced: c.namespaced, Uncached: c.uncached, Patience: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.path = "/apis/" + c.gvr.Group + "/" + c.gvr.Version
	if c.gvr.Group == "" {
		r.path = "/api/" + c.gvr.Version
	}
	get, list := handlers.GetResource(r.store, c.scope), handlers.ListResource(r.store, r.store, c.scope, false, time.Minute)
	count := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			r.fallbacks.Add(1)
			h(w, req)
		}
	}
	r.upstream = httptest.NewServer(r.route(get, list))
	t.Cleanup(r.upstream.Close)
	r.ours = httptest.NewServer(r.route(r.handlers.Get(count(get)), r.handlers.List(count(list))))
	t.Cleanup(r.ours.Close)
	return r
}

// route adds the request info to requests, as the handler chain does.
func (r *resource) route(get, list http.HandlerFunc) http.Handler {
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, err := resolver.NewRequestInfo(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req = req.WithContext(request.WithRequestInfo(req.Context(), info))
		if info.Verb == "get" {
			get(w, req)
			return
		}
		list(w, req)
	})
}

func (r *resource) create(t testing.TB, obj runtime.Object) runtime.Object {
	t.Helper()
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	ctx := request.WithNamespace(context.Background(), m.GetNamespace())
	out, err := r.store.Create(ctx, obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create %s: %v", m.GetName(), err)
	}
	return out
}

func (r *resource) delete(t testing.TB, namespace, name string) {
	t.Helper()
	ctx := request.WithNamespace(context.Background(), namespace)
	if _, _, err := r.store.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatalf("delete %s: %v", name, err)
	}
}

// strategy accepts everything.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
}

func (s strategy) NamespaceScoped() bool                                               { return s.namespaced }
func (strategy) PrepareForCreate(context.Context, runtime.Object)                      {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object)      {}
func (strategy) Canonicalize(runtime.Object)                                           {}
func (strategy) AllowCreateOnUpdate() bool                                             { return true }
func (strategy) AllowUnconditionalUpdate() bool                                        { return true }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string             { return nil }
func (strategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string      { return nil }
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList              { return nil }
func (strategy) ValidateUpdate(_ context.Context, _, _ runtime.Object) field.ErrorList { return nil }

// newScheme returns a scheme with core/v1, without an internal version and with one
// default.
func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	// What is stored without this label is not what is served.
	scheme.AddTypeDefaultingFunc(&corev1.ConfigMap{}, func(obj any) {
		m := obj.(*corev1.ConfigMap)
		if m.Annotations["raw"] != "" && m.Data == nil {
			m.Data = map[string]string{"defaulted": "yes"}
		}
	})
	if err := scheme.AddFieldLabelConversionFunc(corev1.SchemeGroupVersion.WithKind("Pod"), func(label, value string) (string, string, error) {
		switch label {
		case "metadata.name", "metadata.namespace", "spec.nodeName", "status.phase":
			return label, value, nil
		}
		return "", "", fmt.Errorf("field label not supported: %s", label)
	}); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func builtinScope(scheme *runtime.Scheme, gvr schema.GroupVersionResource, kind string, namespaced bool) *handlers.RequestScope {
	codecs := serializer.NewCodecFactory(scheme, serializer.WithStreamingCollectionEncodingToJSON(), serializer.WithStreamingCollectionEncodingToProtobuf())
	return &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: !namespaced},
		Serializer: codecs, ParameterCodec: runtime.NewParameterCodec(scheme),
		Creater: scheme, Convertor: scheme, Defaulter: scheme, Typer: scheme, UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme),
		Resource: gvr, Kind: gvr.GroupVersion().WithKind(kind), HubGroupVersion: gvr.GroupVersion(), MetaGroupVersion: metav1.SchemeGroupVersion,
	}
}

func builtinCodec(scheme *runtime.Scheme) runtime.Codec {
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
}

func podAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("not a pod: %T", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase),
	}, nil
}

func (w *world) pods(t testing.TB, change ...func(*kindConfig)) *resource {
	scheme := newScheme(t)
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	c := kindConfig{
		gvr: gvr, kind: "Pod", namespaced: true, codec: builtinCodec(scheme), attributes: podAttributes,
		newFunc: func() runtime.Object { return &corev1.Pod{} }, newList: func() runtime.Object { return &corev1.PodList{} },
		scope: builtinScope(scheme, gvr, "Pod", true),
	}
	for _, f := range change {
		f(&c)
	}
	return w.add(t, c)
}

func (w *world) configMaps(t testing.TB) *resource {
	scheme := newScheme(t)
	gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
	return w.add(t, kindConfig{
		gvr: gvr, kind: "ConfigMap", namespaced: true, codec: builtinCodec(scheme),
		newFunc: func() runtime.Object { return &corev1.ConfigMap{} }, newList: func() runtime.Object { return &corev1.ConfigMapList{} },
		scope: builtinScope(scheme, gvr, "ConfigMap", true),
	})
}

func (w *world) nodes(t testing.TB) *resource {
	scheme := newScheme(t)
	gvr := corev1.SchemeGroupVersion.WithResource("nodes")
	return w.add(t, kindConfig{
		gvr: gvr, kind: "Node", codec: builtinCodec(scheme), uncached: true,
		newFunc: func() runtime.Object { return &corev1.Node{} }, newList: func() runtime.Object { return &corev1.NodeList{} },
		scope: builtinScope(scheme, gvr, "Node", false),
	})
}

// examples adds a kind with an internal version, which is converted and defaulted.
func (w *world) examples(t testing.TB) *resource {
	scheme := runtime.NewScheme()
	exampleinstall.Install(scheme)
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{})
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	gvr := examplev1.SchemeGroupVersion.WithResource("pods")
	scope := builtinScope(scheme, gvr, "Pod", true)
	scope.HubGroupVersion = example.SchemeGroupVersion
	return w.add(t, kindConfig{
		gvr: gvr, kind: "Pod", namespaced: true, scope: scope,
		codec:   codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), examplev1.SchemeGroupVersion, example.SchemeGroupVersion),
		newFunc: func() runtime.Object { return &example.Pod{} }, newList: func() runtime.Object { return &example.PodList{} },
	})
}

// customSerializer reads and writes unstructured objects.
type customSerializer struct {
	types []runtime.SerializerInfo
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// customTyper also recognizes Status, the kind of errors.
type customTyper struct{ unstructured runtime.ObjectTyper }

func (t customTyper) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := obj.(*metav1.Status); ok {
		return []schema.GroupVersionKind{{Version: "v1", Kind: "Status"}}, true, nil
	}
	return t.unstructured.ObjectKinds(obj)
}
func (customTyper) Recognizes(schema.GroupVersionKind) bool { return true }

func (s customSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.types }
func (customSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	typer := customTyper{unstructuredscheme.NewUnstructuredObjectTyper()}
	return versioning.NewCodec(e, nil, customConvertor{}, unstructuredscheme.NewUnstructuredCreator(), typer, nil, gv, nil, "widgets")
}
func (customSerializer) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}

// customConvertor supports one version, so it never converts.
type customConvertor struct{}

func (customConvertor) Convert(in, out, _ any) error { return fmt.Errorf("convert %T to %T", in, out) }
func (customConvertor) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
func (customConvertor) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	switch label {
	case "metadata.name", "metadata.namespace":
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

func newWidget() runtime.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(widgets.GroupVersion().WithKind("Widget"))
	return u
}

func (w *world) widgets(t testing.TB) *resource {
	typer, creator := customTyper{unstructuredscheme.NewUnstructuredObjectTyper()}, unstructuredscheme.NewUnstructuredCreator()
	plain := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, creator, typer, jsonserializer.SerializerOptions{StreamingCollectionsEncoding: true})
	pretty := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, creator, typer, jsonserializer.SerializerOptions{Pretty: true})
	asProtobuf := protobuf.NewSerializer(creator, typer)
	types := []runtime.SerializerInfo{
		{MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true, Serializer: plain, PrettySerializer: pretty},
		{MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf", Serializer: asProtobuf},
	}
	scope := &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: meta.NewAccessor()},
		Serializer: customSerializer{types}, StandardSerializers: types[:1],
		Creater: creator, Convertor: customConvertor{}, UnsafeConvertor: customConvertor{}, Typer: typer,
		Resource: widgets, Kind: widgets.GroupVersion().WithKind("Widget"), HubGroupVersion: widgets.GroupVersion(), MetaGroupVersion: metav1.SchemeGroupVersion,
	}
	return w.add(t, kindConfig{
		gvr: widgets, kind: "Widget", namespaced: true, scope: scope,
		codec:   runtime.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme),
		newFunc: newWidget,
		newList: func() runtime.Object {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(widgets.GroupVersion().WithKind("WidgetList"))
			return list
		},
	})
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	body   []byte
	// unpacked is the body without compression.
	unpacked []byte
}

func ask(t testing.TB, server *httptest.Server, path string, header http.Header) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	resp, err := plainClient.Do(req)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	a.header.Del("Date")
	a.unpacked = a.body
	if a.header.Get("Content-Encoding") == "gzip" {
		a.header.Del("Content-Length")
		unpacker, err := gzip.NewReader(bytes.NewReader(a.body))
		if err != nil {
			t.Fatalf("GET %s: %v", path, err)
		}
		unpacker.Multistream(false)
		if a.unpacked, err = io.ReadAll(unpacker); err != nil {
			t.Fatalf("GET %s: %v", path, err)
		}
	}
	return a
}

var plainClient = &http.Client{Transport: &http.Transport{
	DisableCompression: true, MaxIdleConnsPerHost: 64,
	ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // of a test
}}

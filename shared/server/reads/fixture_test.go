package reads

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
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

package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/example"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/compatibility"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/etcdembed"
	"triune.dev/shared/testing/etcdtest"
)

// strategy is the minimal strategy of a registry.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
}

func (s strategy) NamespaceScoped() bool                                          { return s.namespaced }
func (strategy) AllowCreateOnUpdate() bool                                        { return true }
func (strategy) AllowUnconditionalUpdate() bool                                   { return true }
func (strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (strategy) Canonicalize(runtime.Object)                                      {}
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string        { return nil }
func (strategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string { return nil }

// createStrategy and updateStrategy are two types because Validate has two signatures.
type (
	createStrategy struct{ strategy }
	updateStrategy struct{ strategy }
)

func (createStrategy) Validate(context.Context, runtime.Object) field.ErrorList { return nil }
func (updateStrategy) ValidateUpdate(_ context.Context, _, _ runtime.Object) field.ErrorList {
	return nil
}

var pods = schema.GroupResource{Group: example.GroupName, Resource: "pods"}

// newFactory returns a storage factory configured as in an API server.
func newFactory(mediaType string, change func(*serverstorage.DefaultStorageFactory)) *serverstorage.DefaultStorageFactory {
	config := storagebackend.NewDefaultConfig("/registry", nil)
	config.Transport.ServerList = []string{"http://main"}
	config.CountMetricPollPeriod = time.Minute
	f := serverstorage.NewDefaultStorageFactory(*config, mediaType, codecs,
		serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, compatibility.NewEffectiveVersionFromString("1.36", "1.35", "1.35")),
		serverstorage.NewResourceConfig(), nil)
	if change != nil {
		change(f)
	}
	return f
}

func newRegistry(t *testing.T, options generic.RESTOptionsGetter, namespaced bool) *genericregistry.Store {
	t.Helper()
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, namespaced: namespaced}
	r := &genericregistry.Store{
		NewFunc:                   newPod,
		NewListFunc:               func() runtime.Object { return &example.PodList{} },
		DefaultQualifiedResource:  pods,
		SingularQualifiedResource: schema.GroupResource{Group: example.GroupName, Resource: "pod"},
		CreateStrategy:            createStrategy{s},
		UpdateStrategy:            updateStrategy{s},
		DeleteStrategy:            s,
		TableConvertor:            rest.NewDefaultTableConvertor(pods),
	}
	attrs := storage.DefaultClusterScopedAttr
	if namespaced {
		attrs = storage.DefaultNamespaceScopedAttr
	}
	if err := r.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: attrs}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Destroy)
	return r
}

// TestStoredBytes checks that keys are kube-apiserver's, and that values are exactly the
// output of the storage codec and the transformer.
func TestStoredBytes(t *testing.T) {
	server := etcdtest.Start(t)
	etcd := server.InProcess()
	encrypted := storagetesting.NewPrefixTransformer([]byte("encrypted:"), false)
	for i, tc := range []struct {
		name       string
		mediaType  string
		namespaced bool
		change     func(*serverstorage.DefaultStorageFactory)
		encryption value.ResourceTransformers
		key        string // %s stands for the object's name
		begins     string
	}{
		{name: "JSON", mediaType: runtime.ContentTypeJSON, namespaced: true,
			key: "/registry/pods/ns/%s", begins: `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"`},
		{name: "protobuf", mediaType: runtime.ContentTypeProtobuf, namespaced: true,
			key: "/registry/pods/ns/%s", begins: "k8s\x00"},
		{name: "cluster-scoped", mediaType: runtime.ContentTypeProtobuf,
			key: "/registry/pods/%s", begins: "k8s\x00"},
		{name: "own resource prefix", mediaType: runtime.ContentTypeProtobuf, namespaced: true,
			change: func(f *serverstorage.DefaultStorageFactory) { f.SetResourceEtcdPrefix(pods, "services/specs") },
			key:    "/registry/services/specs/ns/%s", begins: "k8s\x00"},
		{name: "own etcd prefix", mediaType: runtime.ContentTypeProtobuf, namespaced: true,
			change: func(f *serverstorage.DefaultStorageFactory) { f.SetEtcdPrefix(pods, "/elsewhere") },
			key:    "/elsewhere/pods/ns/%s", begins: "k8s\x00"},
		{name: "encrypted at rest", mediaType: runtime.ContentTypeProtobuf, namespaced: true,
			encryption: transformers{pods: encrypted},
			key:        "/registry/pods/ns/%s", begins: "encrypted:k8s\x00"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			factory := newFactory(tc.mediaType, tc.change)
			options := NewGetter(GetterConfig{Storages: factory, Client: etcd, Transformers: tc.encryption})
			registry := newRegistry(t, options, tc.namespaced)
			ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), "")
			pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"a": "b"}}}
			if tc.namespaced {
				ctx = genericapirequest.WithNamespace(ctx, "ns")
				pod.Namespace = "ns"
			}
			created, err := registry.Create(ctx, pod, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprintf(tc.key, pod.Name)
			resp, err := etcd.Get(t.Context(), key)
			if err != nil || len(resp.Kvs) != 1 {
				t.Fatalf("nothing is stored at %s: %v", key, err)
			}
			stored := resp.Kvs[0].Value
			if !bytes.HasPrefix(stored, []byte(tc.begins)) {
				t.Errorf("stored %.60q, want it to begin with %q", stored, tc.begins)
			}
			config, err := options.GetRESTOptions(pods, newPod())
			if err != nil {
				t.Fatal(err)
			}
			bare := created.(*example.Pod).DeepCopy()
			bare.ResourceVersion = ""
			want, err := runtime.Encode(config.StorageConfig.Codec, bare)
			if err != nil {
				t.Fatal(err)
			}
			if tr := config.StorageConfig.Transformer; tr != nil {
				if want, err = tr.TransformToStorage(t.Context(), want, value.DefaultContext(key)); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(stored, want) {
				t.Errorf("stored:\n%q\nwant what codec and transformer make:\n%q", stored, want)
			}
			got, err := registry.Get(ctx, pod.Name, &metav1.GetOptions{})
			if err != nil || got.(*example.Pod).ResourceVersion != fmt.Sprint(resp.Kvs[0].ModRevision) {
				t.Errorf("get: %v, want revision %d, %v", got, resp.Kvs[0].ModRevision, err)
			}
		})
	}
}

type transformers map[schema.GroupResource]value.Transformer

func (t transformers) TransformerForResource(gr schema.GroupResource) value.Transformer { return t[gr] }

// TestServersOverride checks that a resource is stored in the etcd its configuration names,
// and that each list of servers has one client.
func TestServersOverride(t *testing.T) {
	main, other := etcdtest.Start(t).InProcess(), etcdtest.Start(t).InProcess()
	factory := newFactory(runtime.ContentTypeJSON, func(f *serverstorage.DefaultStorageFactory) {
		f.SetEtcdLocation(pods, []string{"http://b", "http://a"})
	})
	var asked []string
	options := NewGetter(GetterConfig{Storages: factory, ClientFor: func(servers []string) (*clientv3.Client, error) {
		asked = append(asked, fmt.Sprint(servers))
		if len(servers) == 2 {
			return other, nil
		}
		return main, nil
	}})
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), "ns")
	for _, name := range []string{"a", "b"} {
		registry := newRegistry(t, options, true)
		if _, err := registry.Create(ctx, podNamed(name), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(asked) != 1 || asked[0] != "[http://b http://a]" {
		t.Errorf("clients asked for: %v, want one", asked)
	}
	for client, want := range map[*clientv3.Client]int64{main: 0, other: 2} {
		resp, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count != want {
			t.Errorf("%d keys, want %d: %v", resp.Count, want, err)
		}
	}
	failing := NewGetter(GetterConfig{Storages: factory})
	config, err := failing.GetRESTOptions(pods, newPod())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := config.Decorator(config.StorageConfig, "/pods", nil, newPod, nil, nil, nil, nil); err == nil {
		t.Error("without any client there is storage")
	}
}

// TestStorageNeedsACache checks that with caching a resource outside all caches cannot be
// stored: its watches would receive nothing.
func TestStorageNeedsACache(t *testing.T) {
	none := func([]string, string) *Caching { return nil }
	options := NewGetter(GetterConfig{Storages: newFactory(runtime.ContentTypeJSON, nil), Client: etcdtest.Start(t).InProcess(), Caching: none})
	config, err := options.GetRESTOptions(pods, newPod())
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = config.Decorator(config.StorageConfig, "/pods", nil, newPod, nil, nil, nil, nil)
	if want := "storage of pods.example.apiserver.k8s.io: no event log tells of the keys below /registry/pods/"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

type tracker struct{ counts chan int64 }

func (t tracker) Set(_ string, stats storage.Stats) { t.counts <- stats.ObjectCount }
func (tracker) Get(string) (storage.Stats, error)   { return storage.Stats{}, nil }
func (tracker) RunUntil(<-chan struct{})            {}

// TestCounting checks that priority and fairness learn the number of objects.
func TestCounting(t *testing.T) {
	etcd := etcdtest.Start(t).InProcess()
	counted := tracker{make(chan int64, 100)}
	factory := newFactory(runtime.ContentTypeJSON, func(f *serverstorage.DefaultStorageFactory) {
		f.StorageConfig.CountMetricPollPeriod = 10 * time.Millisecond
		f.StorageConfig.StorageObjectCountTracker = counted
	})
	options := NewGetter(GetterConfig{Storages: factory, Client: etcd})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- options.Run(ctx) }()
	registry := newRegistry(t, options, true)
	in := genericapirequest.WithNamespace(genericapirequest.NewContext(), "ns")
	if _, err := registry.Create(in, podNamed("a"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(patience)
	for n := int64(0); n != 1; {
		select {
		case n = <-counted.counts:
		case <-timeout:
			t.Fatal("the pod was not counted")
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// TestCounterUsers checks that a resource is counted until its last Store is destroyed.
func TestCounterUsers(t *testing.T) {
	c := newCounter()
	var asked atomic.Int64
	stats := func(context.Context) (storage.Stats, error) { asked.Add(1); return storage.Stats{}, nil }
	first := c.add(pods, time.Minute, nil, stats)
	second := c.add(pods, time.Minute, nil, stats)
	never := c.add(schema.GroupResource{Resource: "never"}, 0, nil, stats)
	now := time.Now()
	if c.round(t.Context(), now); asked.Load() != 1 {
		t.Errorf("counted %d times, want once", asked.Load())
	}
	if c.round(t.Context(), now.Add(time.Second)); asked.Load() != 1 {
		t.Error("counted again before it is due")
	}
	first()
	first()
	if c.round(t.Context(), now.Add(2*time.Minute)); asked.Load() != 2 {
		t.Errorf("counted %d times, want twice", asked.Load())
	}
	second()
	never()
	if c.round(t.Context(), now.Add(10*time.Minute)); asked.Load() != 2 || len(c.resources) != 0 {
		t.Error("counted although nobody uses it")
	}
}

func TestIndexesOf(t *testing.T) {
	if got := indexesOf(nil); got != nil {
		t.Errorf("of none: %v", got)
	}
	got := indexesOf(&cache.Indexers{storage.LabelIndex("app"): nil, storage.FieldIndex("spec.nodeName"): nil, "by owner": nil})
	want := []bytecache.Term{{Field: true, Key: "spec.nodeName"}, {Key: "app"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEtcdIsClosedWhileItsVersionIsAskedFor closes etcd while k8s.io/apiserver asks for its
// version, in a goroutine that nobody waits for.
func TestEtcdIsClosedWhileItsVersionIsAskedFor(t *testing.T) {
	for range 5 {
		server := etcdtest.Start(t)
		options := NewGetter(GetterConfig{Storages: newFactory(runtime.ContentTypeJSON, nil), Client: server.InProcess()})
		newRegistry(t, options, true)
		server.Stop()
		if _, err := (versioned{server.InProcess()}).Status(t.Context(), ""); !errors.Is(err, etcdembed.ErrClosed) {
			t.Errorf("status of a closed etcd: %v", err)
		}
	}
}

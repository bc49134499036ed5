package etcdstore

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"

	"triune.dev/shared/storage/kv"
	"triune.dev/shared/testing/etcdtest"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

// sealPrefix is put before each stored value by the test transformer.
const sealPrefix = "test!"

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

func newPod() runtime.Object { return &example.Pod{} }

// fixture is a Store of pods with an etcd of its own. Without withCache it reads etcd and
// cannot be watched.
type fixture struct {
	*Store
	t      testing.TB
	server *etcdtest.Server
	etcd   *clientv3.Client
}

// newFixture returns a Store that the functions in change may configure.
func newFixture(t testing.TB, change ...func(*Config)) *fixture {
	t.Helper()
	server := etcdtest.Start(t)
	etcd := server.InProcess()
	return &fixture{Store: newStore(t, etcd, change...), t: t, server: server, etcd: etcd}
}

func newStore(t testing.TB, etcd *clientv3.Client, change ...func(*Config)) *Store {
	t.Helper()
	c := Config{
		Client:         kv.New(etcd),
		Codec:          apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		Transformer:    storagetesting.NewPrefixTransformer([]byte(sealPrefix), false),
		NewFunc:        newPod,
		Prefix:         "/registry",
		ResourcePrefix: "/pods/",
		GroupResource:  schema.GroupResource{Resource: "pods"},
		LeaseReuse:     time.Minute,
	}
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// UpdatePrefixTransformer and CorruptTransformer exchange the transformer, as upstream's
// tests expect of a store.

func (f *fixture) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	own := *f.transformer.(*storagetesting.PrefixTransformer)
	return f.exchange(modify(&own))
}

func (f *fixture) CorruptTransformer() func() { return f.exchange(corruptTransformer{f.transformer}) }

func (f *fixture) exchange(transformer value.Transformer) (undo func()) {
	original := f.transformer
	f.transformer = transformer
	f.reload(f.t)
	return func() {
		f.transformer = original
		f.reload(f.t)
	}
}

type corruptTransformer struct{ value.Transformer }

func (corruptTransformer) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, true, errors.New("broken on purpose")
}

// hookedReader calls before ahead of every list.
type hookedReader struct {
	Reader
	before func()
}

func (r hookedReader) List(ctx context.Context, rng kv.Range) (kv.Page, error) {
	r.before()
	return r.Reader.List(ctx, rng)
}

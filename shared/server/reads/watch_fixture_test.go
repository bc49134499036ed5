package reads

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/storage/readindex"
	"triune.dev/shared/transport/h2"
)

// historyFeed is an event log with as much history as etcd.
type historyFeed struct{ *feed }

func (f historyFeed) Since(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	// A watch observes a compaction after up to 100 ms, and resumptions wait for each other.
	if _, err := f.Get(ctx, prefix, kv.ReadOptions{Revision: after}); errors.Is(err, rpctypes.ErrCompacted) {
		return &kv.CompactedError{Wanted: after}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A sentinel says when everything has come: progress may not be believed yet.
	stream := kv.New(f.Etcd()).Watch(ctx, kv.WatchOptions{Key: "/registry/", Prefix: true, After: after})
	for resp := range stream.C() {
		batch, err := stream.Accept(resp)
		if err != nil {
			return err
		}
		for _, e := range batch.Events {
			if e.Revision > upTo {
				return nil
			}
			if !strings.HasPrefix(e.Key, prefix) {
				continue
			}
			if err := yield(e); err != nil {
				return err
			}
		}
		if batch.Revision >= upTo {
			return nil
		}
	}
	return errors.New("watch of history ended")
}

func newHistoryWorld(t testing.TB, c bytecache.Config) *world {
	t.Helper()
	return newWorld(t, func(config *bytecache.Config) {
		c.Origin, c.Feed = config.Origin, historyFeed{config.Feed.(*feed)}
		*config = c
	})
}

// watched is a resource whose watches are served by upstream's handler from objects and by
// ours from bytes, from the same cache.
type watched struct {
	*resource
	cached       *etcdstore.Store
	handler      http.HandlerFunc
	theirs, mine *httptest.Server
	// pushing serves ours over an HTTP/2 that others than the handlers can write to.
	pushing *httptest.Server
}

func (r *resource) watched(t testing.TB, uncached bool) *watched {
	t.Helper()
	if custom, ok := r.scope.Serializer.(customSerializer); ok {
		custom.types[0].StreamSerializer = &runtime.StreamSerializerInfo{EncodesAsText: true, Serializer: custom.types[0].Serializer, Framer: jsonserializer.Framer}
		r.scope.Serializer = streamSerializer{custom}
	}
	below := strings.TrimPrefix(strings.TrimSuffix(r.cache.Prefix(), "/"), "/registry")
	cached, err := etcdstore.New(etcdstore.Config{
		Client: r.client, Codec: r.store.Storage.Codec, NewFunc: r.store.NewFunc, Prefix: "/registry", ResourcePrefix: below,
		GroupResource: r.store.DefaultQualifiedResource, Uncached: uncached, Cache: r.cache, Prober: readindex.New(r.client, r.cache.Prefix()),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.store.Storage.Storage = cached
	w := &watched{resource: r, cached: cached}
	const minimum = time.Minute
	upstream := handlers.ListResource(r.store, r.store, r.scope, false, minimum)
	fallback := func(rw http.ResponseWriter, req *http.Request) {
		r.fallbacks.Add(1)
		upstream(rw, req)
	}
	if w.handler, err = r.handlers.Watch(WatchConfig{Source: cached.Watches(), MinRequestTimeout: minimum}, fallback); err != nil {
		t.Fatal(err)
	}
	w.theirs = httptest.NewServer(r.route(upstream, upstream))
	w.mine = httptest.NewServer(r.route(w.handler, w.handler))
	w.pushing = httptest.NewUnstartedServer(r.route(w.handler, w.handler))
	h2.Configure(w.pushing.Config, h2.Options{MaxConcurrentStreams: 100, MaxUploadPerStream: 256 << 10, IdleTimeout: time.Minute})
	w.pushing.TLS = &tls.Config{NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	w.pushing.StartTLS()
	t.Cleanup(func() {
		w.pushing.CloseClientConnections()
		w.pushing.Close()
		w.theirs.CloseClientConnections()
		w.theirs.Close()
		w.mine.CloseClientConnections()
		w.mine.Close()
	})
	return w
}

// streamSerializer also encodes the events of a watch.
type streamSerializer struct{ customSerializer }

func (streamSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	typer := eventTyper{customTyper{unstructuredscheme.NewUnstructuredObjectTyper()}}
	return versioning.NewCodec(e, nil, customConvertor{}, unstructuredscheme.NewUnstructuredCreator(), typer, nil, gv, nil, "widgets")
}

type eventTyper struct{ customTyper }

func (t eventTyper) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := obj.(*metav1.WatchEvent); ok {
		return []schema.GroupVersionKind{{Version: "v1", Kind: "WatchEvent"}}, true, nil
	}
	return t.customTyper.ObjectKinds(obj)
}

// revision returns the revision of etcd, once the cache has it.
func (w *watched) revision(t testing.TB) int64 {
	t.Helper()
	revision, err := w.client.Revision(t.Context(), "/registry/")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.space.Await(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	return revision
}

// open begins a watch as a client does.
func open(t testing.TB, client *http.Client, ctx context.Context, url, accept string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// seenEvent is an event of a JSON stream.
type seenEvent struct {
	Type   string `json:"type"`
	Object struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct {
			Namespace, Name, ResourceVersion string
			Labels, Annotations              map[string]string
		} `json:"metadata"`
		Spec    struct{ NodeName string }
		Code    int
		Message string
	} `json:"object"`
}

func (e *seenEvent) key() string { return e.Object.Metadata.Namespace + "/" + e.Object.Metadata.Name }

func events(body io.Reader) *json.Decoder { return json.NewDecoder(bufio.NewReader(body)) }

// protobufFrames counts the frames of a protobuf stream.
func protobufFrames(t testing.TB, body []byte) (frames int) {
	t.Helper()
	for len(body) > 0 {
		if len(body) < 4 {
			t.Fatalf("%d bytes after frame %d", len(body), frames)
		}
		size := int(binary.BigEndian.Uint32(body))
		if len(body) < 4+size {
			t.Fatalf("frame %d has %d of %d bytes", frames, len(body)-4, size)
		}
		body = body[4+size:]
		frames++
	}
	return frames
}

func inNamespace(namespace string) context.Context {
	return request.WithNamespace(context.Background(), namespace)
}

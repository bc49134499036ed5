package reads

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/kv"
)

// interest is the selector of a random watcher.
type interest struct{ namespace, label, field string }

func (i interest) path() string {
	if i.namespace == "" {
		return "/api/v1/pods"
	}
	return "/api/v1/namespaces/" + i.namespace + "/pods"
}

func (i interest) query() string {
	return "&labelSelector=" + url.QueryEscape(i.label) + "&fieldSelector=" + url.QueryEscape(i.field)
}

// stateAt returns the selected objects in etcd at a revision, the reference for a watcher.
func (w *watched) stateAt(t testing.TB, i interest, revision int64) map[string]string {
	t.Helper()
	r := kv.PrefixRange(w.cache.Prefix(), "")
	r.Revision = revision
	page, err := w.client.List(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	label, err := labels.Parse(i.label)
	if err != nil {
		t.Fatal(err)
	}
	field := fields.ParseSelectorOrDie(i.field)
	state := map[string]string{}
	for _, item := range page.KVs {
		obj, err := kruntime.Decode(w.store.Storage.Codec, item.Value)
		if err != nil {
			t.Fatal(err)
		}
		l, f, err := podAttributes(obj)
		if err != nil {
			t.Fatal(err)
		}
		p := obj.(*corev1.Pod)
		if (i.namespace == "" || p.Namespace == i.namespace) && label.Matches(l) && field.Matches(f) {
			state[p.Namespace+"/"+p.Name] = strconv.FormatInt(item.ModRevision, 10)
		}
	}
	return state
}

// reflect watches a collection as client-go's reflector does, through timeouts and
// resumptions, until it has seen a revision. It fails on an inconsistent event, and
// compares its state with that of etcd at every bookmark.
func (w *watched) reflect(t *testing.T, i interest, end *atomic.Int64, random *rand.Rand) (bookmarks int) {
	state := map[string]string{}
	reached, fresh := int64(0), true
	for round := 0; ; round++ {
		query := "?watch=1&allowWatchBookmarks=true&timeoutSeconds=3" + i.query()
		if fresh {
			query += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
		} else {
			query += "&resourceVersion=" + strconv.FormatInt(reached, 10)
		}
		ctx, cancel := context.WithCancel(t.Context())
		// Some go away in the middle of a stream, and resume from where they were.
		leave := -1
		if random.IntN(2) == 0 {
			leave = 1 + random.IntN(40)
		}
		server := []*httptest.Server{w.mine, w.pushing}[random.IntN(2)]
		resp := open(t, plainClient, ctx, server.URL+i.path()+query, "application/json")
		stream := events(resp.Body)
		initial := fresh
		if fresh {
			reached = 0
		}
		for n := 0; n != leave || initial; n++ {
			var e seenEvent
			if err := stream.Decode(&e); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("%+v: %v", i, err)
				}
				break
			}
			revision, err := strconv.ParseInt(e.Object.Metadata.ResourceVersion, 10, 64)
			if err != nil {
				t.Errorf("%+v: %s %q: %v", i, e.Type, e.Object.Message, err)
				cancel()
				return bookmarks
			}
			_, known := state[e.key()]
			switch {
			case e.Type == "BOOKMARK":
				if e.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
					initial, fresh = false, false
				}
				if revision < reached {
					t.Errorf("%+v: bookmark %d after revision %d", i, revision, reached)
				}
				if diff := cmp.Diff(w.stateAt(t, i, revision), state); diff != "" {
					t.Errorf("%+v: state at %d (-etcd +watcher):\n%s", i, revision, diff)
				}
				bookmarks++
			case !initial && revision <= reached:
				t.Errorf("%+v: %s of %s at %d after revision %d", i, e.Type, e.key(), revision, reached)
			case known == (e.Type == "ADDED"):
				t.Errorf("%+v: %s of %s, which was known: %t", i, e.Type, e.key(), known)
			}
			switch e.Type {
			case "ADDED", "MODIFIED":
				state[e.key()] = e.Object.Metadata.ResourceVersion
			case "DELETED":
				delete(state, e.key())
			}
			if !initial {
				reached = max(reached, revision)
			}
		}
		cancel()
		_ = resp.Body.Close()
		if last := end.Load(); last != 0 && reached >= last {
			return bookmarks
		}
		if round > 200 {
			t.Errorf("%+v: at %d, not at %d after %d streams", i, reached, end.Load(), round)
			return bookmarks
		}
		if random.IntN(4) == 0 {
			state, fresh = map[string]string{}, true // and some list again
		}
	}
}

// TestNoEventIsMissedRepeatedOrReordered runs random writers, and watchers with random
// selectors that disconnect and resume. The log is so small that slow watchers read from
// history.
func TestNoEventIsMissedRepeatedOrReordered(t *testing.T) {
	const seed = 7
	w := newHistoryWorld(t, bytecache.Config{LogBytes: 32 << 10}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "0", 1))
	w.revision(t)
	interests := []interest{
		{}, {namespace: "ns-0"}, {namespace: "ns-1", label: "app=red"}, {label: "app!=red"}, {label: "app in (red, blue)"},
		{field: "spec.nodeName=node-1"}, {field: "metadata.name=3"}, {label: "app=green", field: "spec.nodeName!=node-1"},
		{namespace: "ns-1", field: "metadata.name=2"}, {field: "metadata.namespace=ns-1"},
	}
	var writers, watchers sync.WaitGroup
	var end atomic.Int64 // the last revision, when there is one
	marks := make([]int, 2*len(interests))
	for n := range marks {
		watchers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(100+n)))
			marks[n] = w.reflect(t, interests[n%len(interests)], &end, random)
		})
	}
	for n := range 3 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(n)))
			for range 1000 {
				w.disturb(random)
			}
		})
	}
	writers.Wait()
	// A last change that nobody's selection has is still in their bookmarks.
	w.change(t, "ns-0", "0", func(obj kruntime.Object) { obj.(*corev1.Pod).Spec.NodeName = "end" })
	end.Store(w.revision(t))
	watchers.Wait()
	for n, count := range marks {
		if count < 2 {
			t.Errorf("watcher %d has seen %d bookmarks: too few to prove anything", n, count)
		}
	}
	if n := w.fallbacks.Load(); n != 0 {
		t.Errorf("%d fallbacks", n)
	}
}

// disturb changes one of a few objects. It ignores conflicts of writers.
func (w *watched) disturb(random *rand.Rand) {
	namespace, name := fmt.Sprintf("ns-%d", random.IntN(2)), strconv.Itoa(1+random.IntN(5))
	ctx := inNamespace(namespace)
	if random.IntN(4) == 0 {
		_, _, _ = w.store.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
		return
	}
	color, node := []string{"red", "blue", "green"}[random.IntN(3)], fmt.Sprintf("node-%d", random.IntN(3))
	update := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old kruntime.Object) (kruntime.Object, error) {
		p := pod(namespace, name, 1)
		if o, ok := old.(*corev1.Pod); ok && o.Name != "" {
			p = o.DeepCopy()
		}
		p.Labels, p.Spec.NodeName = map[string]string{"app": color, "n": strconv.FormatUint(random.Uint64(), 36)}, node
		return p, nil
	})
	_, _, _ = w.store.Update(ctx, name, update, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
}

// TestStalledWatchers checks that a stalled watcher neither delays others nor retains
// memory, and misses nothing when it reads again.
func TestStalledWatchers(t *testing.T) {
	const stalled, changes, size, logged = 6, 150, 64 << 10, 4
	w := newHistoryWorld(t, bytecache.Config{LogBytes: logged * size, FormBytes: logged * size}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "a", 1))
	query := fmt.Sprintf("/api/v1/pods?watch=1&resourceVersion=%d", w.revision(t))
	path := w.mine.URL + query
	ctx, cancel := context.WithCancel(t.Context())
	gate := make(chan struct{})
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer cancel()
	var bodies []io.Reader
	for range stalled {
		req := w.newRequest(t, query, http.Header{"Accept": {"application/json"}})
		info, _ := request.RequestInfoFrom(req.Context())
		body, out := io.Pipe()
		bodies = append(bodies, body)
		handlers.Go(func() {
			w.handler(&gated{header: http.Header{}, gate: gate, out: out}, req.WithContext(request.WithRequestInfo(ctx, info)))
		})
		defer body.Close()
	}
	reading := events(open(t, plainClient, t.Context(), path, "application/json").Body)
	big := strings.Repeat("x", size)
	var entries []weak.Pointer[bytecache.Entry]
	var last string
	for n := range changes {
		w.change(t, "ns-0", "a", func(obj kruntime.Object) {
			obj.(*corev1.Pod).Annotations = map[string]string{"n": strconv.Itoa(n), "big": big}
		})
		var e seenEvent
		if err := reading.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if got := e.Object.Metadata.Annotations["n"]; got != strconv.Itoa(n) {
			t.Fatalf("event %s, want %d", got, n)
		}
		entry, _ := w.cache.Peek(w.cache.Prefix() + "ns-0/a")
		entries = append(entries, weak.Make(entry))
		last = e.Object.Metadata.ResourceVersion
	}
	// The log, and the changes that a reader may still be writing.
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		retained := alive(entries)
		if retained <= 2*logged+stalled {
			break
		}
		if time.Since(begun) > 20*pendingTimeout {
			t.Fatalf("%d of %d states are still in memory", retained, changes)
		}
	}
	close(gate)
	for i, body := range bodies {
		stream := events(body)
		for n, revision := 0, ""; revision != last; n++ {
			var e seenEvent
			if err := stream.Decode(&e); err != nil {
				t.Fatalf("watcher %d, event %d: %v", i, n, err)
			}
			if got := e.Object.Metadata.Annotations["n"]; got != strconv.Itoa(n) {
				t.Fatalf("watcher %d: event %s, want %d", i, got, n)
			}
			revision = e.Object.Metadata.ResourceVersion
		}
	}
}

// gated is the response of a client that reads nothing until the gate opens.
type gated struct {
	header http.Header
	gate   chan struct{}
	out    io.Writer
}

func (g *gated) Header() http.Header { return g.header }
func (g *gated) WriteHeader(int)     {}
func (g *gated) Flush()              {}
func (g *gated) Write(p []byte) (int, error) {
	<-g.gate
	return g.out.Write(p)
}

func alive(entries []weak.Pointer[bytecache.Entry]) (count int) {
	runtime.GC()
	for _, e := range entries {
		if e.Value() != nil {
			count++
		}
	}
	return count
}

// TestLargeRevision checks that the changes of one large revision are written in parts,
// without gaps or repetitions.
func TestLargeRevision(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	lease, err := w.client.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const pods = 300
	for i := range pods {
		p := w.create(t, pod("ns-0", fmt.Sprintf("p-%03d", i), 1)).(*corev1.Pod)
		key := w.cache.Prefix() + "ns-0/" + p.Name
		item, err := w.client.Get(t.Context(), key, kv.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Put(t.Context(), kv.Put{Key: key, Value: item.KV.Value, Expected: item.KV.ModRevision, Lease: lease}); err != nil {
			t.Fatal(err)
		}
	}
	from := w.revision(t)
	stream := events(open(t, plainClient, t.Context(), fmt.Sprintf("%s/api/v1/pods?watch=1&resourceVersion=%d", w.mine.URL, from), "application/json").Body)
	if _, err := w.etcd.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	w.create(t, pod("ns-0", "after", 1))
	gone := map[string]bool{}
	for {
		var e seenEvent
		if err := stream.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Type == "ADDED" {
			break
		}
		if e.Type != "DELETED" || e.Object.Metadata.ResourceVersion != strconv.FormatInt(from+1, 10) || gone[e.key()] {
			t.Fatalf("%s of %s at %s", e.Type, e.key(), e.Object.Metadata.ResourceVersion)
		}
		gone[e.key()] = true
	}
	if len(gone) != pods {
		t.Errorf("%d deletions, want %d", len(gone), pods)
	}
}

// shutdownSignal is that of a server.
type shutdownSignal chan struct{}

func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// TestWatchEnds checks that a watch, and its goroutine, end with the client, the timeout
// and the server.
func TestWatchEnds(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "a", 1))
	w.revision(t)
	for name, end := range map[string]func(cancel func(), signal shutdownSignal){
		"client gone": func(cancel func(), _ shutdownSignal) { cancel() },
		"shutdown":    func(_ func(), signal shutdownSignal) { close(signal) },
		"timeout":     func(func(), shutdownSignal) {},
	} {
		t.Run(name, func(t *testing.T) {
			signal := shutdownSignal(make(chan struct{}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended, begun := make(chan struct{}), make(chan struct{})
			req := w.newRequest(t, "/api/v1/pods?watch=1&timeoutSeconds=1", http.Header{})
			info, _ := request.RequestInfoFrom(req.Context())
			ctx = request.WithServerShutdownSignal(request.WithRequestInfo(ctx, info), signal)
			go func() {
				defer close(ended)
				w.handler(&begins{header: http.Header{}, flushed: begun}, req.WithContext(ctx))
			}()
			<-begun
			end(cancel, signal)
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Fatal("the handler did not return")
			}
		})
	}
}

// begins is a response that reports when the initial events have been flushed.
type begins struct {
	header  http.Header
	written int
	flushed chan struct{}
	once    sync.Once
}

func (b *begins) Header() http.Header { return b.header }
func (b *begins) WriteHeader(int)     {}
func (b *begins) Write(p []byte) (int, error) {
	b.written += len(p)
	return len(p), nil
}
func (b *begins) Flush() {
	if b.written > 0 {
		b.once.Do(func() { close(b.flushed) })
	}
}

// flushes is a response that counts flushes and discards the body.
type flushes struct {
	discard
	flushed int
}

func (f *flushes) Flush() { f.flushed++ }

// direct returns a stream without a client, to which the caller delivers changes.
func (w *watched) direct(t testing.TB, path, accept string) (*watchStream, *flushes) {
	t.Helper()
	handler := w.handlersWatches(t)
	req := w.newRequest(t, path, http.Header{"Accept": {accept}})
	media, table, ok := handler.media(req)
	if !ok {
		t.Fatal("not served here")
	}
	info, _ := requestInfo(req)
	options, ok := handler.watchOptions(req, info.Name)
	if !ok {
		t.Fatal("not served here")
	}
	out := &flushes{discard: discard{header: http.Header{}}}
	s := &watchStream{watches: handler, ctx: t.Context(), w: out, flusher: out, media: media}
	if !handler.prepare(s, info.Namespace, &options) || table && !s.initTable(req) {
		t.Fatal("not served here")
	}
	var err error
	if s.watch, err = s.request.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.initMetrics()
	return s, out
}

func (w *watched) handlersWatches(t testing.TB) *watches {
	t.Helper()
	return newWatches(w.handlers, WatchConfig{Source: w.cached.Watches(), MinRequestTimeout: time.Minute})
}

// TestEventSizesHaveTraceExemplars checks that the size of an event is counted once for all
// watches of a resource, with an exemplar if the request is traced.
func TestEventSizesHaveTraceExemplars(t *testing.T) {
	metrics.Register()
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	s, _ := w.direct(t, "/api/v1/pods?watch=1&resourceVersion=1", "application/json")
	const size = 77
	before, exemplars := w.sizes(t)
	s.sizes.Observe(size)
	traced := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	after, without := w.sizes(t)
	if after != before+1 || len(without) != len(exemplars) {
		t.Errorf("%d sizes after %d, exemplars %v", after, before, without)
	}
	s.ctx = trace.ContextWithSpanContext(s.ctx, traced)
	s.initMetrics()
	s.sizes.Observe(size)
	if all, with := w.sizes(t); all != after+1 || !slices.Contains(with, traced.TraceID().String()) {
		t.Errorf("%d sizes after %d, exemplars %v", all, after, with)
	}
}

// sizes returns how many pod events were counted, and the traces of the exemplars.
func (w *watched) sizes(t *testing.T) (count uint64, traces []string) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	resource := w.handlers.config.Scope.Resource
	for _, family := range families {
		if family.GetName() != "apiserver_watch_events_sizes" {
			continue
		}
		for _, m := range family.Metric {
			values := map[string]string{}
			for _, label := range m.Label {
				values[label.GetName()] = label.GetValue()
			}
			if values["group"] != resource.Group || values["version"] != resource.Version || values["resource"] != resource.Resource {
				continue
			}
			count += m.Histogram.GetSampleCount()
			for _, bucket := range m.Histogram.Bucket {
				for _, label := range bucket.Exemplar.GetLabel() {
					if label.GetName() == "trace_id" {
						traces = append(traces, label.GetValue())
					}
				}
			}
		}
	}
	return count, traces
}

// TestDeliveryAllocatesNothing checks that another watcher costs no allocation per event,
// with and without a selector, for single events and for several at once.
func TestDeliveryAllocatesNothing(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	w.create(t, pod("ns-0", "a", 1))
	from := w.revision(t)
	for n := range 4 {
		w.change(t, "ns-0", "a", func(obj kruntime.Object) {
			obj.(*corev1.Pod).Labels = map[string]string{"app": "red", "n": strconv.Itoa(n)}
		})
	}
	w.revision(t)
	for _, query := range []string{"", "&labelSelector=app%3Dred", "&fieldSelector=spec.nodeName%3Dnode-1", "&labelSelector=n"} {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", asTable} {
			s, out := w.direct(t, fmt.Sprintf("/api/v1/pods?watch=1&resourceVersion=%d%s", from, query), accept)
			changes, err := s.watch.Next(t.Context())
			if err != nil || len(changes.List) != 4 {
				t.Fatalf("%d changes, %v", len(changes.List), err)
			}
			for _, few := range []int{1, 4} {
				some := bytecache.Changes{List: changes.List[:few], Revision: changes.List[few-1].Revision}
				deliver := func() {
					if whole, err := s.deliver(some); !whole || err != nil {
						t.Fatal(whole, err)
					}
					s.flush()
				}
				out.bytes = 0
				allocations := testing.AllocsPerRun(100, deliver)
				if accept == asTable && allocations > 0 { // the row was printed again, for a second is over
					allocations = testing.AllocsPerRun(100, deliver)
				}
				if allocations != 0 || out.bytes < 101*400*int64(few) || out.flushed == 0 {
					t.Errorf("%s as %s: %v allocations for %d events, %d bytes", query, accept, allocations, few, out.bytes)
				}
			}
		}
	}
}

// TestFrames checks the bytes of several kinds of events.
func TestFrames(t *testing.T) {
	got := appendFrame(nil, false, "ADDED", []byte("{\"kind\":\"Pod\"}\n"))
	if want := "{\"type\":\"ADDED\",\"object\":{\"kind\":\"Pod\"}}\n"; string(got) != want {
		t.Errorf("JSON: %q, want %q", got, want)
	}
	for _, size := range []int{0, 1, 120, 127, 128, 16383, 16384, 1 << 21} {
		object := make([]byte, size)
		frame := appendFrame(nil, true, "MODIFIED", object)
		var e metav1.WatchEvent
		if err := e.Unmarshal(frame[4:]); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if n := protobufFrames(t, frame); n != 1 || e.Type != "MODIFIED" || len(e.Object.Raw) != size {
			t.Errorf("%d bytes: %d frames, %s with %d bytes", size, n, e.Type, len(e.Object.Raw))
		}
		want, err := (&metav1.WatchEvent{Type: "MODIFIED", Object: kruntime.RawExtension{Raw: object}}).Marshal()
		if err != nil || !bytes.Equal(want, frame[4:]) {
			t.Errorf("%d bytes: not as upstream encodes it (%v)", size, err)
		}
	}
}

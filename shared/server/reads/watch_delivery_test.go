package reads

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"triune.dev/shared/storage/bytecache"
)

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

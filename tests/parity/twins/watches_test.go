package twins

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"triune.dev/tests/parity"
)

// watchEncodings are the encodings of events, and some that are not supported.
var watchEncodings = []string{
	"application/json", "application/vnd.kubernetes.protobuf", "application/cbor", "application/yaml",
	asTable, "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
	"application/cbor;as=Table;v=v1;g=meta.k8s.io",
	"application/json" + asOne, "application/vnd.kubernetes.protobuf" + asOne, "application/cbor" + asOne, "application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
	asTable + ",application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
}

// watched are the collections with objects of the story.
var watched = []string{
	"/api/v1/namespaces/story/configmaps", "/api/v1/configmaps", "/api/v1/namespaces/story/pods", "/apis/coordination.k8s.io/v1/namespaces/story/leases",
	"/apis/twins.triune.dev/v1/namespaces/story/widgets", "/apis/twins.triune.dev/v1beta1/widgets",
}

// transcript records a watch.
type transcript struct {
	mediaType string

	mu    sync.Mutex
	body  []byte // guarded by mu, as is ended
	ended bool
	// grown receives a value after every change of body.
	grown chan struct{}
}

func (t *transcript) read(from io.Reader) {
	chunk := make([]byte, 64<<10)
	for {
		n, err := from.Read(chunk)
		t.mu.Lock()
		t.body = append(t.body, chunk[:n]...)
		t.ended = err != nil
		t.mu.Unlock()
		select {
		case t.grown <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// over reports whether the server has ended the watch.
func (t *transcript) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// bytes returns the events without periodic bookmarks, which each server sends at its own
// times. The bookmark at the end of the initial events is kept.
func (t *transcript) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	unordered := strings.Contains(t.mediaType, "cbor")
	if !unordered && !bytes.Contains(t.body, bookmark) {
		return bytes.Clone(t.body)
	}
	var framer runtime.Framer = jsonserializer.Framer
	switch {
	case strings.Contains(t.mediaType, "protobuf"):
		framer = protobuf.LengthDelimitedFramer
	case unordered:
		framer = cbor.NewFramer()
	}
	var out []byte
	from := framer.NewFrameReader(io.NopCloser(bytes.NewReader(t.body)))
	for {
		frame := make([]byte, len(t.body))
		n, err := from.Read(frame)
		if err != nil { // the rest is incomplete
			return out
		}
		frame = frame[:n]
		if unordered {
			if err := ordered(&frame); err != nil {
				return append(out, err.Error()...)
			}
		}
		if !bytes.Contains(frame, bookmark) || bytes.Contains(frame, []byte(metav1.InitialEventsAnnotationKey)) {
			out = append(out, frame...)
		}
	}
}

var bookmark = []byte(watch.Bookmark)

// watching is a watch on both servers.
type watching struct {
	request  parity.Request
	heads    [2]answer
	streams  [2]*transcript
	answered bool // the response is a stream
}

// open opens a watch on both servers. Both end with ctx at the latest, and then group is
// done.
func (w *twins) open(ctx context.Context, group *errgroup.Group, r parity.Request) (*watching, error) {
	out := &watching{request: r, answered: true}
	for i, b := range w.both {
		resp, err := b.Open(ctx, r, nil)
		if err != nil {
			return nil, err
		}
		out.heads[i], _ = plain(&parity.Answer{Code: resp.StatusCode, Header: resp.Header})
		out.streams[i] = &transcript{mediaType: resp.Header.Get("Content-Type"), grown: make(chan struct{}, 1)}
		out.answered = out.answered && resp.StatusCode == http.StatusOK
		group.Go(func() error {
			defer resp.Body.Close()
			out.streams[i].read(resp.Body)
			return nil
		})
	}
	return out, nil
}

// await returns true once both streams contain end, then after it, and have the same
// length; false after patience.
func (w *watching) await(ctx context.Context, end, then string) bool {
	for {
		a, b := w.streams[0].bytes(), w.streams[1].bytes()
		if _, after, ok := bytes.Cut(a, []byte(end)); ok && len(a) == len(b) && bytes.Contains(after, []byte(then)) {
			return true
		}
		if w.streams[0].over() {
			return false
		}
		select {
		case <-w.streams[0].grown:
		case <-w.streams[1].grown:
		case <-ctx.Done():
			return false
		}
	}
}

// differs describes the difference of the transcripts, "" if they are equal.
func (w *watching) differs() string {
	a, b := w.heads[0], w.heads[1]
	a.Body, b.Body = w.streams[0].bytes(), w.streams[1].bytes()
	if equal(a, b) {
		return ""
	}
	return fmt.Sprintf("%s %v (-kube-apiserver +tested):\n%s", w.request.Do, w.request.Headers, difference(a, b))
}

// oldWatches opens watches from before the story, which happened before the etcd was
// copied.
func (w *twins) oldWatches(t *testing.T) {
	selections := []string{"", "&labelSelector=watched%3Dyes", "&allowWatchBookmarks=true"}
	for _, path := range watched {
		var differences []string
		for range attempts { // ages may change in the middle of a Table
			if differences = w.oldWatch(t, path, selections); len(differences) == 0 {
				break
			}
		}
		for _, diff := range differences {
			t.Error(diff)
		}
	}
}

func (w *twins) oldWatch(t *testing.T, path string, selections []string) (differences []string) {
	t.Helper()
	var group errgroup.Group
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); _ = group.Wait() }()
	var all []*watching
	for _, accept := range watchEncodings {
		for _, selection := range selections {
			o, err := w.open(ctx, &group, get(fmt.Sprintf("%s?watch=true&resourceVersion=%d%s", path, w.content.history, selection), accept))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, o)
		}
	}
	w.finish(t, all, lastEventText(path))
	for _, o := range all {
		if diff := o.differs(); diff != "" {
			differences = append(differences, diff)
		}
	}
	return differences
}

// lastEventText returns a text of the last event of a collection.
func lastEventText(path string) string {
	if strings.Contains(path, "widgets") {
		return "v1beta1-" + lastName
	}
	return lastName
}

// finish waits for the ends of watches: after the creation of the last object, its deletion
// is the only event.
func (w *twins) finish(t *testing.T, all []*watching, end string) {
	t.Helper()
	w.until(t, all, func(o *watching, ctx context.Context) bool { return o.await(ctx, end, "DELETED") })
}

// patience is how long watches may take, together, to send the story.
const patience = 15 * time.Second

func (w *twins) until(t *testing.T, all []*watching, done func(*watching, context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, o := range all {
		if o.answered && !done(o, ctx) {
			t.Logf("%s %v: %d and %d bytes, and still waiting", o.request.Do, o.request.Headers, len(o.streams[0].bytes()), len(o.streams[1].bytes()))
		}
	}
}

// liveWatches opens watches and then repeats the story, with the same bytes at the same
// revisions in both etcds. A difference counts if it occurs twice: a cache that is late for
// a list leaves it at another revision.
func (w *twins) liveWatches(t *testing.T) {
	var found []string
	for range 2 * attempts {
		differences, complete := w.repeatStory(t)
		if !complete {
			continue
		}
		if len(differences) == 0 {
			return
		}
		again := len(found) > 0
		if found = differences; again {
			break
		}
	}
	for _, diff := range found[:min(len(found), 8)] {
		t.Error(diff)
	}
	if len(found) == 0 {
		t.Fatal("something was written into one of the etcds, or kube-apiserver has ended watches, each time")
	}
	t.Fatalf("%d watches differ", len(found))
}

func (w *twins) repeatStory(t *testing.T) (differences []string, complete bool) {
	revision, err := w.level(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); _ = group.Wait() }()
	var all []*watching
	initial := "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
	for _, path := range watched {
		queries := []string{fmt.Sprintf("resourceVersion=%d", revision), initial, initial + "&labelSelector=watched%3Dyes", "", "resourceVersion=0&labelSelector=watched%3Dyes", "fieldSelector=metadata.namespace%3Dstory,metadata.name!%3Dnone",
			"includeObject=None&resourceVersion=0", "includeObject=Object&resourceVersion=0"}
		accepts := watchEncodings
		if path == "/api/v1/configmaps" { // the servers write some of them
			queries = queries[:1]
		}
		if strings.Contains(path, "widgets") {
			queries = append(queries, "resourceVersion=0&fieldSelector=spec.color%3Dred", initial+"&fieldSelector=spec.color%3Dred")
			if strings.Contains(path, "v1beta1") { // only one version has this selectable field
				queries = append(queries, "fieldSelector=spec.shape!%3Dnone")
			} else {
				queries = append(queries, "fieldSelector=spec.big!%3Dtrue")
			}
		}
		if strings.Contains(path, "pods") {
			queries = append(queries, "fieldSelector=spec.nodeName%3Dtwin")
		}
		if testing.Short() {
			accepts = []string{"application/json", "application/vnd.kubernetes.protobuf", asTable, "application/json" + asOne}
		}
		// Bring the caches to the revision of bookmarks and initial states.
		if _, err := w.ask(ctx, get(path, "")); err != nil {
			t.Fatal(err)
		}
		tables := map[string]bool{}
		for _, query := range queries {
			for _, accept := range accepts {
				// Of several watches of the same Table, kube-apiserver repeats the columns
				// for some: see docs/divergences.md.
				if negotiated, _, _ := strings.Cut(accept, ","); strings.Contains(accept, "as=Table") {
					if path == "/api/v1/configmaps" { // a namespace of them is watched, too
						continue
					}
					style := negotiated
					if strings.HasPrefix(query, "includeObject") {
						style += query
					}
					if tables[style] {
						continue
					}
					tables[style] = true
				}
				o, err := w.open(ctx, &group, get(path+"?watch=true&"+query, accept))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, o)
			}
		}
	}
	// The story begins after all watches have received the initial state.
	var beginning []*watching
	for _, o := range all {
		if strings.Contains(o.request.Do, initial) {
			beginning = append(beginning, o)
		}
	}
	w.until(t, beginning, func(o *watching, ctx context.Context) bool {
		return o.await(ctx, metav1.InitialEventsAnnotationKey, "")
	})
	complete = w.replay(t)
	for _, path := range watched {
		var those []*watching
		for _, o := range all {
			if strings.HasPrefix(o.request.Do, "GET "+path+"?") {
				those = append(those, o)
			}
		}
		if complete {
			w.finish(t, those, lastEventText(path))
		}
	}
	// kube-apiserver ends the watches of slow clients, which on a busy machine may be any
	// client.
	for _, o := range all {
		complete = complete && (!o.answered || !o.streams[0].over())
	}
	for _, o := range all {
		if diff := o.differs(); diff != "" {
			differences = append(differences, diff)
		}
	}
	return differences, complete
}

// replay applies the changes of the story to both etcds. It returns false if their
// revisions diverge.
func (w *twins) replay(t *testing.T) bool {
	t.Helper()
	same := true
	for _, e := range w.content.events {
		var at [2]int64
		for i, b := range w.both {
			var err error
			at[i], err = apply(t.Context(), b.etcd, e)
			if err != nil {
				t.Fatal(err)
			}
		}
		same = same && cmp.Equal(at[0], at[1])
	}
	return same
}

func apply(ctx context.Context, etcd *clientv3.Client, e *clientv3.Event) (int64, error) {
	key := string(e.Kv.Key)
	if e.Type == mvccpb.DELETE {
		resp, err := etcd.Delete(ctx, key)
		if err != nil {
			return 0, err
		}
		return resp.Header.Revision, nil
	}
	resp, err := etcd.Put(ctx, key, aged(e.Kv.Value))
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// textTime matches a date in JSON, or in CBOR, where a letter before it encodes its length.
var textTime = regexp.MustCompile(`20\d\d-\d\d-\d\dT`)

// aged changes the year of a stored object's times, so that its age in a Table does not
// change within seconds. The size stays the same.
func aged(value []byte) string {
	const years = 4 * 365 * 24 * time.Hour
	if !bytes.HasPrefix(value, []byte("k8s\x00")) {
		return string(textTime.ReplaceAll(value, []byte("2020-01-01T")))
	}
	out := bytes.Clone(value)
	now := time.Now()
	// A time is a message with seconds in field 1 and nanoseconds in field 2.
	for i := range out {
		if out[i] != 1<<3 {
			continue
		}
		seconds, n := binary.Uvarint(out[i+1:])
		if n > 0 && now.Sub(time.Unix(int64(seconds), 0)).Abs() < 24*time.Hour && bytes.HasPrefix(out[i+1+n:], []byte{2 << 3, 0}) {
			binary.PutUvarint(out[i+1:], uint64(time.Unix(int64(seconds), 0).Add(-years).Unix()))
		}
	}
	return string(out)
}

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

// watchEncodings are those in which events can be asked for, and some in which they
// cannot.
var watchEncodings = []string{
	"application/json", "application/vnd.kubernetes.protobuf", "application/cbor", "application/yaml",
	asTable, "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
	"application/cbor;as=Table;v=v1;g=meta.k8s.io",
	"application/json" + asOne, "application/vnd.kubernetes.protobuf" + asOne, "application/cbor" + asOne, "application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
	asTable + ",application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
}

// watched are the collections that the story is about.
var watched = []string{
	"/api/v1/namespaces/story/configmaps", "/api/v1/configmaps", "/api/v1/namespaces/story/pods", "/apis/coordination.k8s.io/v1/namespaces/story/leases",
	"/apis/twins.triune.dev/v1/namespaces/story/widgets", "/apis/twins.triune.dev/v1beta1/widgets",
}

// transcript is what came of a watch.
type transcript struct {
	mediaType string

	mu    sync.Mutex
	body  []byte // guarded by mu, as is ended
	ended bool
	// grown is told of every change of body.
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

// over tells whether the server has ended the watch.
func (t *transcript) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// bytes are the events, without the bookmarks that are sent now and then: each server
// has its own times for these. The one that ends the initial events is no such.
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
		if err != nil { // the rest is not whole yet
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

// watching is one watch on both servers.
type watching struct {
	request  parity.Request
	heads    [2]answer
	streams  [2]*transcript
	answered bool // with a stream
}

// open begins a watch on both. The group is done when both are over, which the end of
// ctx makes them.
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

// await returns true when both streams have a text, after it another one, and as many
// bytes; false when patience is over.
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

// differs describes how the two transcripts differ, "" if they do not.
func (w *watching) differs() string {
	a, b := w.heads[0], w.heads[1]
	a.Body, b.Body = w.streams[0].bytes(), w.streams[1].bytes()
	if equal(a, b) {
		return ""
	}
	return fmt.Sprintf("%s %v (-kube-apiserver +tested):\n%s", w.request.Do, w.request.Headers, difference(a, b))
}

// oldWatches begin before what happened in the story before the etcd was copied.
func (w *twins) oldWatches(t *testing.T) {
	selections := []string{"", "&labelSelector=watched%3Dyes", "&allowWatchBookmarks=true"}
	for _, path := range watched {
		var differences []string
		for range attempts { // ages turn in the middle of a Table
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
	w.finish(t, all, curtainOf(path))
	for _, o := range all {
		if diff := o.differs(); diff != "" {
			differences = append(differences, diff)
		}
	}
	return differences
}

// curtainOf is what stands in the last event of a collection.
func curtainOf(path string) string {
	if strings.Contains(path, "widgets") {
		return "v1beta1-" + curtain
	}
	return curtain
}

// finish waits for the ends of watches: the deletion of the last object is the only
// one after its creation.
func (w *twins) finish(t *testing.T, all []*watching, end string) {
	t.Helper()
	w.until(t, all, func(o *watching, ctx context.Context) bool { return o.await(ctx, end, "DELETED") })
}

// patience is how long watches may take, together, to tell what has happened.
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

// liveWatches are open while the story is told again, in both etcds with the same
// bytes at the same revisions. They differ if they do twice: a list for which a cache was
// late leaves it at another revision than the other one.
func (w *twins) liveWatches(t *testing.T) {
	var found []string
	for range 2 * attempts {
		differences, told := w.tellAgain(t)
		if !told {
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

func (w *twins) tellAgain(t *testing.T) (differences []string, told bool) {
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
		if path == "/api/v1/configmaps" { // there are objects that the servers write
			queries = queries[:1]
		}
		if strings.Contains(path, "widgets") {
			queries = append(queries, "resourceVersion=0&fieldSelector=spec.color%3Dred", initial+"&fieldSelector=spec.color%3Dred")
			if strings.Contains(path, "v1beta1") { // a field that only one version selects by
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
		// Caches are brought to the revision that bookmarks and initial states have.
		if _, err := w.ask(ctx, get(path, "")); err != nil {
			t.Fatal(err)
		}
		tables := map[string]bool{}
		for _, query := range queries {
			for _, accept := range accepts {
				// Of several watches for the same Table kube-apiserver repeats the columns to
				// some: see docs/divergences.md.
				if negotiated, _, _ := strings.Cut(accept, ","); strings.Contains(accept, "as=Table") {
					if path == "/api/v1/configmaps" { // those of a namespace are watched, too
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
	// The story begins when all are told that they have seen what there was before it.
	var beginning []*watching
	for _, o := range all {
		if strings.Contains(o.request.Do, initial) {
			beginning = append(beginning, o)
		}
	}
	w.until(t, beginning, func(o *watching, ctx context.Context) bool {
		return o.await(ctx, metav1.InitialEventsAnnotationKey, "")
	})
	told = w.replay(t)
	for _, path := range watched {
		var those []*watching
		for _, o := range all {
			if strings.HasPrefix(o.request.Do, "GET "+path+"?") {
				those = append(those, o)
			}
		}
		if told {
			w.finish(t, those, curtainOf(path))
		}
	}
	// kube-apiserver ends the watches of clients that do not keep up, which on a busy
	// machine is any client.
	for _, o := range all {
		told = told && (!o.answered || !o.streams[0].over())
	}
	for _, o := range all {
		if diff := o.differs(); diff != "" {
			differences = append(differences, diff)
		}
	}
	return differences, told
}

// replay does to both etcds what happened in the story. It returns false if one of
// them got another revision than the other.
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

// textTime is a day in JSON, or in CBOR, where what tells the length of a time stands
// before it and is a letter.
var textTime = regexp.MustCompile(`20\d\d-\d\d-\d\dT`)

// aged makes a stored object some years old, so that its age is the same in a Table
// that is made a second later. The size stays.
func aged(value []byte) string {
	const years = 4 * 365 * 24 * time.Hour
	if !bytes.HasPrefix(value, []byte("k8s\x00")) {
		return string(textTime.ReplaceAll(value, []byte("2020-01-01T")))
	}
	out := bytes.Clone(value)
	now := time.Now()
	// A time is a message of seconds, field 1, and nanoseconds, field 2.
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

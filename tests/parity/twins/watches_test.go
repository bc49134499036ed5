package twins

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/parity"
)

// watchEncodings are media types of events, and some that the servers refuse.
var watchEncodings = []string{
	"application/json", "application/vnd.kubernetes.protobuf", "application/cbor", "application/yaml",
	asTable, "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
	"application/cbor;as=Table;v=v1;g=meta.k8s.io",
	"application/json" + asOne, "application/vnd.kubernetes.protobuf" + asOne, "application/cbor" + asOne, "application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
	asTable + ",application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
}

// watched are the collections that change in the story.
var watched = []string{
	"/api/v1/namespaces/story/configmaps", "/api/v1/configmaps", "/api/v1/namespaces/story/pods", "/apis/coordination.k8s.io/v1/namespaces/story/leases",
	"/apis/twins.triune.dev/v1/namespaces/story/widgets", "/apis/twins.triune.dev/v1beta1/widgets",
}

// watching is one watch on both servers.
type watching struct {
	request  parity.Request
	heads    [2]answer
	streams  [2]*transcript
	answered bool // the response is a stream
}

// open opens a watch on both servers, until ctx ends. The group waits for the end of both.
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

// await waits until both streams contain end, and then after it, and are equally long. It
// returns false if ctx ends before.
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

// differs describes the differences of the transcripts, or returns "".
func (w *watching) differs() string {
	a, b := w.heads[0], w.heads[1]
	a.Body, b.Body = w.streams[0].bytes(), w.streams[1].bytes()
	if equal(a, b) {
		return ""
	}
	return fmt.Sprintf("%s %v (-kube-apiserver +tested):\n%s", w.request.Do, w.request.Headers, difference(a, b))
}

// oldWatches compares watches that begin before the story, which happened before etcd was
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

// liveWatches compares watches that are open while the story is repeated in both etcds, with
// the same bytes at the same revisions. It tries twice before it reports a difference: after a
// list for which a cache was late, the caches are at different revisions.
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
				// kube-apiserver repeats the columns in some of several watches for the same
				// Table: see docs/divergences.md.
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
	// The story begins when all watches have sent their initial events.
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

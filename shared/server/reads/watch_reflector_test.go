package reads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

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

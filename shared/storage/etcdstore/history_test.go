package etcdstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestNoEventIsMissedRepeatedOrReordered has writers change a few objects at random while
// etcd restarts. Watchers start at various revisions and with various selectors; each must
// end with the state that a list shows, and receive each revision at most once and in
// order.
func TestNoEventIsMissedRepeatedOrReordered(t *testing.T) {
	f := newFixture(t)
	f.Store = newStore(t, f.server.Dial(t), withCache(t))
	f.watches.BookmarkInterval = 5 * time.Millisecond
	const names, writers, operations = 6, 4, 150
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	selectors := []storage.SelectionPredicate{storage.Everything, selecting(t, "color=red"), selecting(t, "color!=red")}
	type watched struct {
		w        watch.Interface
		selector storage.SelectionPredicate
		from     string
	}
	var mu sync.Mutex
	var all []watched
	open := func(version string) {
		for _, p := range selectors {
			p.AllowWatchBookmarks = true
			w, err := f.Watch(ctx, "/pods", storage.ListOptions{ResourceVersion: version, Recursive: true, Predicate: p})
			if err != nil {
				t.Errorf("watch: %v", err)
				return
			}
			mu.Lock()
			all = append(all, watched{w, p, version})
			mu.Unlock()
		}
	}
	open("1")
	open("")

	var group sync.WaitGroup
	for writer := range writers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(writer), 1))
			for i := range operations {
				version, err := f.change(ctx, random)
				if err != nil {
					// While etcd is away, a write may fail or succeed unseen. Watchers are
					// compared with the stored state.
					continue
				}
				if i%50 == 25 && version != "" {
					open(version)
				}
			}
		})
	}
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		f.server.Restart(t)
	}()
	group.Wait()
	<-restarted

	// A last object ends all replays: it enters and leaves both selections, so that every
	// watcher sees it.
	for _, color := range []string{"red", "blue"} {
		eventually(t, "the end is marked", func() bool {
			_, err := f.paint(ctx, "end", color)
			return err == nil
		})
	}
	for i, one := range all {
		t.Run(fmt.Sprintf("watcher %d from %q, %s", i, one.from, one.selector.Label), func(t *testing.T) {
			list := &example.PodList{}
			if err := f.GetList(ctx, "/pods", storage.ListOptions{Recursive: true, Predicate: one.selector}, list); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for _, pod := range list.Items {
				want[pod.Name] = pod.ResourceVersion
			}
			got := f.stateAt(t, one.selector, one.from)
			replay(t, one.w, got, one.from == "", revisionOf(t, list.ResourceVersion))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("replayed state (-list +replay):\n%s", diff)
			}
		})
	}
}

// change writes one of a few objects at random and returns the new version.
func (f *fixture) change(ctx context.Context, random *rand.Rand) (string, error) {
	name := strconv.Itoa(random.IntN(6))
	if random.IntN(3) == 0 {
		out := &example.Pod{}
		err := f.Delete(ctx, podKey(name), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		if storage.IsNotFound(err) {
			err = nil
		}
		return out.ResourceVersion, err
	}
	return f.paint(ctx, name, []string{"red", "blue"}[random.IntN(2)])
}

// paint creates or updates an object, always with a change.
func (f *fixture) paint(ctx context.Context, name, color string) (string, error) {
	out := &example.Pod{}
	err := f.GuaranteedUpdate(ctx, podKey(name), out, true, nil, func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		pod := obj.(*example.Pod)
		n, _ := strconv.Atoi(pod.Labels["n"])
		pod.Namespace, pod.Name = "ns", name
		pod.Labels = map[string]string{"color": color, "n": strconv.Itoa(n + 1)}
		return pod, nil, nil
	}, nil)
	return out.ResourceVersion, err
}

// stateAt returns the state a watcher from a version starts with: nothing, if it begins
// with the existing objects.
func (f *fixture) stateAt(t *testing.T, p storage.SelectionPredicate, version string) map[string]string {
	t.Helper()
	state := map[string]string{}
	if version == "" || version == "1" {
		return state
	}
	list := &example.PodList{}
	err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: version, ResourceVersionMatch: "Exact", Predicate: p}, list)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		state[pod.Name] = pod.ResourceVersion
	}
	return state
}

// replay applies the events of a watch to state up to revision end, and fails if one does
// not fit.
func replay(t *testing.T, w watch.Interface, state map[string]string, fromState bool, end int64) {
	t.Helper()
	defer w.Stop()
	reached := int64(0)
	seen := map[string]bool{}
	for {
		e := receive(t, w)
		pod, ok := e.Object.(*example.Pod)
		if !ok {
			t.Fatalf("unexpected %s: %v", e.Type, e.Object)
		}
		rev := revisionOf(t, pod.ResourceVersion)
		if e.Type == watch.Bookmark {
			if rev < reached {
				t.Fatalf("bookmark %d after revision %d", rev, reached)
			}
			reached = rev
			if rev >= end {
				return
			}
			continue
		}
		// Initial events come ordered by name, at the revisions of their objects.
		if rev <= reached && (!fromState || e.Type != watch.Added || seen[pod.Name]) {
			t.Fatalf("%s after revision %d", describe(e), reached)
		}
		seen[pod.Name] = true
		reached = max(reached, rev)
		_, known := state[pod.Name]
		if known == (e.Type == watch.Added) {
			t.Fatalf("%s of an object that was there: %t", describe(e), known)
		}
		if e.Type == watch.Deleted {
			delete(state, pod.Name)
		} else {
			state[pod.Name] = pod.ResourceVersion
		}
		if rev >= end {
			return
		}
	}
}

package etcdstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/testing/etcdtest"
)

const patience = 20 * time.Second

func (f *fixture) watch(t testing.TB, ctx context.Context, opts storage.ListOptions) watch.Interface {
	t.Helper()
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		allow := opts.Predicate.AllowWatchBookmarks
		opts.Predicate = storage.Everything
		opts.Predicate.AllowWatchBookmarks = allow
	}
	w, err := f.Watch(ctx, "/pods", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func receive(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event came")
		return watch.Event{}
	}
}

// receiveWhile calls do until an event arrives. Bookmarks need a store whose revision
// moves.
func receiveWhile(t testing.TB, w watch.Interface, do func()) watch.Event {
	t.Helper()
	timeout := time.After(patience)
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatal("the watch ended")
			}
			return e
		case <-tick.C:
			do()
		case <-timeout:
			t.Fatal("no event came")
		}
	}
}

// ended waits for a watch to end and returns its last events.
func ended(t testing.TB, w watch.Interface) []watch.Event {
	t.Helper()
	var events []watch.Event
	timeout := time.After(patience)
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return events
			}
			events = append(events, e)
		case <-timeout:
			t.Fatal("the watch did not end")
		}
	}
}

// describe formats an event: type, object and revision.
func describe(e watch.Event) string {
	pod, ok := e.Object.(*example.Pod)
	if !ok {
		return fmt.Sprintf("%s %T", e.Type, e.Object)
	}
	end := ""
	if pod.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
		end = " end"
	}
	return fmt.Sprintf("%s %s@%s%s", e.Type, pod.Name, pod.ResourceVersion, end)
}

func expect(t testing.TB, w watch.Interface, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, describe(receive(t, w)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
}

func at(pod *example.Pod) string { return pod.Name + "@" + pod.ResourceVersion }

// TestWatchSelector checks that an object that leaves the selection is DELETED, in its
// state before, at the revision of the change.
func TestWatchSelector(t *testing.T) {
	f := newFixture(t, withCache(t))
	before := f.create(t, podNamed("before"))
	w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: before.ResourceVersion, Predicate: selecting(t, "color=red")})
	created := f.create(t, podNamed("a", label("color", "red")))
	f.create(t, podNamed("never", label("color", "blue")))
	modified := f.update(t, "a", label("size", "xl"))
	left := f.update(t, "a", label("color", "blue"))
	f.update(t, "a", label("size", "m"))
	entered := f.update(t, "a", label("color", "red"))
	removed := f.remove(t, "a")
	f.remove(t, "never")
	expect(t, w, "ADDED "+at(created), "MODIFIED "+at(modified))
	gone := receive(t, w)
	if describe(gone) != "DELETED "+at(left) || gone.Object.(*example.Pod).Labels["color"] != "red" {
		t.Errorf("on leaving: %s with labels %v, want %s with its labels before", describe(gone), gone.Object.(*example.Pod).Labels, at(left))
	}
	expect(t, w, "ADDED "+at(entered), "DELETED "+at(removed))
	if revisionOf(t, removed.ResourceVersion) <= revisionOf(t, entered.ResourceVersion) {
		t.Errorf("deleted at %s, after %s", removed.ResourceVersion, entered.ResourceVersion)
	}
}

// TestWatchOneObject checks that a watch of one object sees no other, one of which has a
// longer name.
func TestWatchOneObject(t *testing.T) {
	f := newFixture(t, withCache(t))
	w, err := f.Watch(t.Context(), podKey("a"), storage.ListOptions{ResourceVersion: "1", Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	f.create(t, podNamed("aa"))
	f.create(t, podNamed("b"))
	expect(t, w, "ADDED "+at(f.create(t, podNamed("a"))))
}

// TestWatchLargeRevision deletes a thousand keys in one revision, as an expired lease does.
func TestWatchLargeRevision(t *testing.T) {
	f := newFixture(t, withCache(t))
	lease, err := f.etcd.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	const pods = 1000
	big := strings.Repeat("x", 4<<10)
	var version string
	for i := range pods {
		pod := f.create(t, podNamed(fmt.Sprintf("p%04d", i), label("big", big)))
		stored, err := f.etcd.Get(t.Context(), "/registry"+podKey(pod.Name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.etcd.Put(t.Context(), "/registry"+podKey(pod.Name), string(stored.Kvs[0].Value), clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
		version = pod.ResourceVersion
	}
	rev, err := f.currentRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: strconv.FormatInt(rev, 10)})
	if _, err := f.etcd.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range pods {
		e := receive(t, w)
		pod := e.Object.(*example.Pod)
		if e.Type != watch.Deleted || revisionOf(t, pod.ResourceVersion) != rev+1 || pod.Labels["big"] != big {
			t.Fatalf("%s, want a deletion at %d (created around %s)", describe(e), rev+1, version)
		}
		seen[pod.Name] = true
	}
	if len(seen) != pods {
		t.Errorf("%d different pods deleted, want %d", len(seen), pods)
	}
}

// TestWatchExpired checks that 410 comes as an event and ends the watch.
func TestWatchExpired(t *testing.T) {
	f := newFixture(t, withCache(t))
	created := f.create(t, podNamed("a"))
	f.update(t, "a", label("n", "1"))
	newest := f.update(t, "a", label("n", "2"))
	if err := f.cache.Space().Await(t.Context(), revisionOf(t, newest.ResourceVersion)); err != nil {
		t.Fatal(err)
	}
	f.compact(t.Context(), t, newest.ResourceVersion)
	for _, tc := range []struct {
		name, version string
	}{
		{"history is gone", created.ResourceVersion},
		{"the value before the first event is gone", strconv.FormatInt(revisionOf(t, newest.ResourceVersion)-1, 10)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			events := ended(t, f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: tc.version}))
			if len(events) != 1 || events[0].Type != watch.Error {
				t.Fatalf("events %v, want one error", events)
			}
			status := events[0].Object.(*metav1.Status)
			if status.Code != 410 || status.Reason != metav1.StatusReasonExpired || !strings.HasPrefix(status.Message, "too old resource version: "+tc.version) {
				t.Errorf("status %d %s %q", status.Code, status.Reason, status.Message)
			}
		})
	}
	t.Run("after the compacted revision", func(t *testing.T) {
		w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: newest.ResourceVersion})
		expect(t, w, "MODIFIED "+at(f.update(t, "a", label("n", "3"))))
	})
}

// TestWatchFromTheFuture checks that events before the watch's version are left out.
func TestWatchFromTheFuture(t *testing.T) {
	f := newFixture(t, withCache(t))
	first := f.create(t, podNamed("a"))
	w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: strconv.FormatInt(revisionOf(t, first.ResourceVersion)+2, 10)})
	f.update(t, "a", label("n", "1"))
	f.update(t, "a", label("n", "2"))
	expect(t, w, "MODIFIED "+at(f.update(t, "a", label("n", "3"))))
}

// TestInitialEvents: KEP-3157.
func TestInitialEvents(t *testing.T) {
	f := newFixture(t, withCache(t))
	f.watches.FreshTimeout = 100 * time.Millisecond
	const pods = firstPage + 20 // two pages
	var want []string
	var last *example.Pod
	for i := range pods {
		last = f.create(t, podNamed(fmt.Sprintf("p%04d", i), label("parity", strconv.Itoa(i%2))))
		if i%2 == 0 {
			want = append(want, "ADDED "+at(last))
		}
	}
	yes := true
	selector := selecting(t, "parity=0")
	selector.AllowWatchBookmarks = true
	for _, version := range []string{"", "0", last.ResourceVersion} {
		t.Run("resourceVersion="+version, func(t *testing.T) {
			w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: version, SendInitialEvents: &yes, Predicate: selector})
			expect(t, w, append(want, "BOOKMARK @"+last.ResourceVersion+" end")...)
		})
	}
	t.Run("then live events", func(t *testing.T) {
		w := f.watch(t, t.Context(), storage.ListOptions{SendInitialEvents: &yes, Predicate: selector})
		left := f.update(t, "p0000", label("parity", "none"))
		expect(t, w, append(want, "BOOKMARK @"+last.ResourceVersion+" end", "DELETED "+at(left))...)
	})
	t.Run("a version that does not come", func(t *testing.T) {
		events := ended(t, f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: "1000000", SendInitialEvents: &yes, Predicate: selector}))
		if len(events) != 1 || events[0].Type != watch.Error {
			t.Fatalf("events %v, want one error", events)
		}
		if err := apierrors.FromObject(events[0].Object); !storage.IsTooLargeResourceVersion(err) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("none wanted", func(t *testing.T) {
		no := false
		w := f.watch(t, t.Context(), storage.ListOptions{SendInitialEvents: &no})
		expect(t, w, "ADDED "+at(f.create(t, podNamed("new"))))
	})
}

// TestBookmarks checks that bookmarks follow the revision of etcd, not only that of the
// resource.
func TestBookmarks(t *testing.T) {
	f := newFixture(t, withCache(t))
	f.watches.BookmarkInterval = 20 * time.Millisecond
	created := f.create(t, podNamed("a"))
	bookmarks := storage.SelectionPredicate{AllowWatchBookmarks: true}
	t.Run("from time to time", func(t *testing.T) {
		w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: created.ResourceVersion, Predicate: bookmarks})
		marked := receiveWhile(t, w, func() { f.increaseRevision(t.Context(), t) })
		if rev := revisionOf(t, marked.Object.(*example.Pod).ResourceVersion); marked.Type != watch.Bookmark || rev <= revisionOf(t, created.ResourceVersion) {
			t.Errorf("%s, want a bookmark beyond %s", describe(marked), created.ResourceVersion)
		}
	})
	t.Run("never behind an event", func(t *testing.T) {
		w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: created.ResourceVersion, Predicate: bookmarks})
		reached, marks := int64(0), 0
		for i := 0; marks < 3; i++ {
			f.update(t, "a", label("n", strconv.Itoa(i)))
			e := receive(t, w)
			rev := revisionOf(t, e.Object.(*example.Pod).ResourceVersion)
			if rev < reached {
				t.Fatalf("%s after revision %d", describe(e), reached)
			}
			reached = rev
			if e.Type == watch.Bookmark {
				marks++
			}
		}
	})
	t.Run("before the deadline", func(t *testing.T) {
		f.watches.BookmarkInterval = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+200*time.Millisecond)
		defer cancel()
		updated := f.update(t, "a", label("n", "deadline"))
		w := f.watch(t, ctx, storage.ListOptions{ResourceVersion: updated.ResourceVersion, Predicate: bookmarks})
		marked := receiveWhile(t, w, func() { f.increaseRevision(t.Context(), t) })
		if marked.Type != watch.Bookmark {
			t.Errorf("%s, want a bookmark", describe(marked))
		}
		ended(t, w)
	})
	t.Run("only where they are wanted", func(t *testing.T) {
		f.watches.BookmarkInterval = 10 * time.Millisecond
		updated := f.update(t, "a", label("n", "plain"))
		plain := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: updated.ResourceVersion})
		marked := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: updated.ResourceVersion, Predicate: bookmarks})
		if e := receiveWhile(t, marked, func() { f.increaseRevision(t.Context(), t) }); e.Type != watch.Bookmark {
			t.Errorf("%s, want a bookmark", describe(e))
		}
		f.remove(t, "a")
		for {
			e := receive(t, plain)
			if e.Type == watch.Bookmark {
				t.Fatal("an unwanted bookmark")
			}
			if e.Type == watch.Deleted {
				return
			}
		}
	})
}

// TestWatchEnds checks that the goroutine and the channel of a watch end with it.
func TestWatchEnds(t *testing.T) {
	f := newFixture(t, withCache(t))
	f.create(t, podNamed("a"))
	// Goroutines that all watches share are started before the count.
	keep := f.watch(t, t.Context(), storage.ListOptions{})
	receive(t, keep)
	f.update(t, "a", label("n", "0"))
	receive(t, keep)
	f.watches.BookmarkInterval = 10 * time.Millisecond
	for _, tc := range []struct {
		name string
		end  func(w watch.Interface, cancel func())
	}{
		{"stopped", func(w watch.Interface, _ func()) { w.Stop() }},
		{"stopped twice", func(w watch.Interface, _ func()) { w.Stop(); w.Stop() }},
		{"context done", func(_ watch.Interface, cancel func()) { cancel() }},
	} {
		for _, unread := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unread %t", tc.name, unread), func(t *testing.T) {
				before := etcdtest.Goroutines()
				for range 10 {
					ctx, cancel := context.WithCancel(t.Context())
					w := f.watch(t, ctx, storage.ListOptions{Predicate: storage.SelectionPredicate{AllowWatchBookmarks: true}})
					if unread {
						// More than the buffers hold, so that the watch is blocked sending.
						for range 2 * resultBuffer {
							f.update(t, "a", label("n", strconv.FormatInt(time.Now().UnixNano(), 36)))
						}
					}
					tc.end(w, cancel)
					ended(t, w)
					cancel()
				}
				goleak.VerifyNone(t, before...)
			})
		}
	}
	t.Run("context done before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if events := ended(t, f.watch(t, ctx, storage.ListOptions{})); len(events) != 0 {
			t.Errorf("events %v", events)
		}
	})
}

// TestSlowWatcher checks that a slow watcher delays nobody else and misses nothing.
func TestSlowWatcher(t *testing.T) {
	f := newFixture(t, withCache(t))
	created := f.create(t, podNamed("a"))
	slow := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: created.ResourceVersion})
	fast := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: created.ResourceVersion})
	var want []string
	for i := range 10 * resultBuffer {
		want = append(want, "MODIFIED "+at(f.update(t, "a", label("n", strconv.Itoa(i)))))
	}
	expect(t, fast, want...)
	expect(t, slow, want...)
}

// TestWatchSurvivesRestart checks that a watch continues without a gap when etcd returns.
func TestWatchSurvivesRestart(t *testing.T) {
	f := newFixture(t)
	f.Store = newStore(t, f.server.Dial(t), withCache(t))
	created := f.create(t, podNamed("a"))
	w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: created.ResourceVersion})
	first := f.update(t, "a", label("n", "1"))
	expect(t, w, "MODIFIED "+at(first))
	f.server.Restart(t)
	expect(t, w, "MODIFIED "+at(f.update(t, "a", label("n", "2"))))
}

// TestWatchCannotRead checks that an unreadable object ends the watch with an error, and
// that nothing follows it.
func TestWatchCannotRead(t *testing.T) {
	f := newFixture(t, withCache(t))
	created := f.create(t, podNamed("a"))
	w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: created.ResourceVersion})
	if _, err := f.etcd.Put(t.Context(), "/registry"+podKey("b"), sealPrefix+"rubbish"); err != nil {
		t.Fatal(err)
	}
	f.update(t, "a", label("n", "1"))
	events := ended(t, w)
	if len(events) != 1 || events[0].Type != watch.Error || events[0].Object.(*metav1.Status).Code != 500 {
		t.Errorf("events %v, want one error 500", events)
	}
}

// TestWatchNeedsACache checks that an uncached Store refuses watches.
func TestWatchNeedsACache(t *testing.T) {
	everything := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	if _, err := newFixture(t).Watch(t.Context(), "/pods", everything); err == nil || !strings.Contains(err.Error(), "has no cache") {
		t.Errorf("without a cache: %v", err)
	}
	// The key of one object is always below its collection's prefix; only a key that names
	// none can be outside.
	f := newFixture(t, withCache(t), func(c *Config) { c.ResourcePrefix = "/pods" })
	if _, err := f.Watch(t.Context(), "/pods", storage.ListOptions{Predicate: storage.Everything}); err == nil || !strings.Contains(err.Error(), "below /registry/pods/") {
		t.Errorf("beside the cache: %v", err)
	}
}

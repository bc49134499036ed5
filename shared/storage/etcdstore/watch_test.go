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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
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

// receiveWhile calls do until an event arrives. Bookmarks are sent only while the revision of
// the store changes.
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

// ended waits until a watch ends and returns its last events.
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

// describe returns the type, name and revision of an event.
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

// TestWatchSelector checks that an object that no longer matches is reported as DELETED, in
// its previous state and with the revision of the change.
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

// TestWatchOneObject checks that a watch of one object has no events of others, one of which
// has a name that begins with its name.
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

// TestWatchLargeRevision checks a revision with a thousand events: an expired lease deletes
// its keys at once.
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

// TestWatchExpired checks that an expired watch gets 410 as an ERROR event and ends.
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

// TestWatchFromTheFuture checks that a watch from a future version has no earlier events.
func TestWatchFromTheFuture(t *testing.T) {
	f := newFixture(t, withCache(t))
	first := f.create(t, podNamed("a"))
	w := f.watch(t, t.Context(), storage.ListOptions{ResourceVersion: strconv.FormatInt(revisionOf(t, first.ResourceVersion)+2, 10)})
	f.update(t, "a", label("n", "1"))
	f.update(t, "a", label("n", "2"))
	expect(t, w, "MODIFIED "+at(f.update(t, "a", label("n", "3"))))
}

package etcdstore

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestInitialEvents checks watches with sendInitialEvents (KEP-3157).
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
				t.Fatal("a bookmark came unasked")
			}
			if e.Type == watch.Deleted {
				return
			}
		}
	})
}

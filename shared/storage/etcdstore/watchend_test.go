package etcdstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/testing/etcdtest"
)

// TestWatchEnds checks that a watch closes its channel and leaves no goroutine, however it
// ends.
func TestWatchEnds(t *testing.T) {
	f := newFixture(t, withCache(t))
	f.create(t, podNamed("a"))
	// The first watch starts goroutines that all watches share.
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
						// More events than the buffers hold, so that sending blocks.
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

// TestSlowWatcher checks that a slow watcher delays no other one, and misses no event.
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

// TestWatchSurvivesRestart checks that a watch continues without a gap after a restart of
// etcd.
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

// TestWatchCannotRead checks that an unreadable object ends the watch with an ERROR event.
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

// TestWatchNeedsACache checks that a store without a cache refuses watches: there is no other
// source of events.
func TestWatchNeedsACache(t *testing.T) {
	everything := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	if _, err := newFixture(t).Watch(t.Context(), "/pods", everything); err == nil || !strings.Contains(err.Error(), "has no cache") {
		t.Errorf("without a cache: %v", err)
	}
	// The key /registry/pods names no object and is not below the prefix of the cache.
	f := newFixture(t, withCache(t), func(c *Config) { c.ResourcePrefix = "/pods" })
	if _, err := f.Watch(t.Context(), "/pods", storage.ListOptions{Predicate: storage.Everything}); err == nil || !strings.Contains(err.Error(), "below /registry/pods/") {
		t.Errorf("beside the cache: %v", err)
	}
}

package shutdown

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// TestWaiters: waiters are notified after their own signal, unless they were removed before.
// No goroutine remains without waiters, which synctest checks.
func TestWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		notified := map[string]bool{}
		w := New(func(name string) {
			mu.Lock()
			defer mu.Unlock()
			notified[name] = true
		})
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(notified))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		signal, other := make(chan struct{}), make(chan struct{})
		for _, name := range []string{"a", "b", "removed"} {
			w.Add(signal, name)
		}
		w.Add(other, "other")
		w.Remove(signal, "removed")
		w.Remove(signal, "removed")
		expect("before the signal")
		close(signal)
		expect("after the signal", "a", "b")
		w.Add(signal, "late")
		expect("added after the signal", "a", "b", "late")
		for _, name := range []string{"a", "b", "late"} {
			w.Remove(signal, name)
		}
		w.Remove(other, "other")
		w.Remove(other, "other")
		if len(w.groups) > 0 {
			t.Errorf("%d groups remain", len(w.groups))
		}
	})
}

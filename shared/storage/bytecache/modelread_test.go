package bytecache

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"triune.dev/shared/storage/kv"
)

// watcher rebuilds a resource from a list and the changes after it.
type watcher struct {
	cursor *Cursor
	cache  *Cache
	line   *timeline
	// state is the state at revision, nil while revision is in the future.
	state    map[string]string
	revision int64
	// A mustExpire watcher must get an ExpiredError, an mayExpire one may.
	mustExpire, mayExpire bool
}

// receive checks the result of a cursor and applies it.
func (at *watcher) receive(w *world, changes Changes) error {
	if changes.Revision < at.revision {
		return w.fault("revision %d after %d", changes.Revision, at.revision)
	}
	if len(changes.List) > 0 && at.state == nil {
		// The revision is no longer in the future.
		at.state = at.line.valuesAt(at.cache.prefix, at.revision)
	}
	last := at.revision
	for i, c := range changes.List {
		if i == 0 && c.Revision <= last || c.Revision < last {
			return w.fault("a change at %d after %d", c.Revision, last)
		}
		last = c.Revision
		if c.Revision > changes.Revision {
			return w.fault("a change at %d, up to %d", c.Revision, changes.Revision)
		}
		before, existed := at.state[c.Key]
		if existed != (c.Kind != kv.Created) || existed != (c.Before != nil) || (c.Now == nil) != (c.Kind == kv.Deleted) {
			return w.fault("kind %d of %s at %d, existed %t", c.Kind, c.Key, c.Revision, existed)
		}
		if c.Before != nil && string(c.Before.Data()) != before {
			return w.fault("%s at %d was %q before, want %q", c.Key, c.Revision, c.Before.Data(), before)
		}
		delete(at.state, c.Key)
		if c.Now != nil {
			if c.Now.Revision != c.Revision || c.Now.Key != c.Key {
				return w.fault("entry of %s at %d in the change of %s at %d", c.Now.Key, c.Now.Revision, c.Key, c.Revision)
			}
			at.state[c.Key] = string(c.Now.Data())
		}
	}
	at.revision = changes.Revision
	if at.state == nil || changes.Revision > at.line.now() {
		return nil
	}
	if want := at.line.valuesAt(at.cache.prefix, at.revision); !maps.Equal(at.state, want) {
		return w.fault("watcher of %s at %d has %v, want %v", at.cache.prefix, at.revision, at.state, want)
	}
	return nil
}

// read makes one call and checks its result; over reports whether the watcher has ended.
func (at *watcher) read(w *world, next func() (Changes, error)) (changes Changes, over bool) {
	w.reading, w.compacted = at, false
	mustExpire, mayExpire := at.mustExpire, at.mayExpire
	changes, err := next()
	w.reading = nil
	var gone *ExpiredError
	switch {
	case err == nil && mustExpire && !mayExpire:
		_ = w.fault("watcher of %s from %d goes on over a reset", at.cache.prefix, at.revision)
	case err == nil:
		_ = at.receive(w, changes)
	case errors.As(err, &gone):
		if !at.mustExpire && !at.mayExpire && !w.compacted {
			_ = w.fault("watcher of %s from %d: %v, but history is there", at.cache.prefix, at.revision, err)
		}
		return changes, true
	case isInjected(err):
		at.mayExpire = true // where exactly it is
	default:
		_ = w.fault("watcher of %s: %v", at.cache.prefix, err)
	}
	return changes, false
}

// isInjected reports whether the model has caused an error: a failure, or a restore between
// the pages of a load.
func isInjected(err error) bool {
	return errors.Is(err, errInjected) || errors.Is(err, rpctypes.ErrFutureRev)
}

// reading are the steps of readers.
var reading = []operation{
	{"list", 6, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		before := w.complete(c)
		s, err := c.Snapshot(context.Background())
		if !w.read(err) {
			return
		}
		if s.Revision < min(before, w.complete(c)) {
			_ = w.fault("a list at %d, the cache is at %d", s.Revision, before)
		}
		h := w.checkSnapshot(s, c)
		if r.IntN(2) == 0 {
			c.Pin(s)
			w.mustKeep(h, true)
		}
	}},
	{"look at old lists", 4, func(w *world, _ *rand.Rand) {
		for _, h := range w.checked {
			_ = w.check(h)
		}
		w.pinned = slices.DeleteFunc(w.pinned, func(k pinnedRevision) bool { return k.epoch != k.cache.epoch })
		if len(w.pinned) > maxPinned {
			w.pinned = nil
		}
		for _, k := range w.pinned {
			if _, ok := k.cache.SnapshotAt(k.revision); !ok {
				_ = w.fault("%s: the snapshot at %d is not pinned", k.cache.prefix, k.revision)
			}
			w.readAt(k.cache, k.revision)
		}
	}},
	{"get", 5, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		key := c.prefix + string(rune('a'+r.IntN(6)))
		e, revision, err := c.Get(context.Background(), key)
		if !w.read(err) {
			return
		}
		want, exists := w.etcd.states[revision][key]
		if exists != (e != nil) || e != nil && (string(e.Data()) != want.value || e.Revision != want.revision || e.Key != key) {
			_ = w.fault("get %s at %d: %+v, want %+v", key, revision, e, want)
		}
		if count, ok := c.Count(c.prefix); !ok || count != len(w.etcd.states[revision].below(c.prefix)) {
			_ = w.fault("count of %s at %d: %d", c.prefix, revision, count)
		}
	}},
	{"select", 6, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		t := Term{Field: r.IntN(3) == 0}
		t.Key = map[bool]string{true: "n", false: "l"}[t.Field]
		all := []string{"x", "y", "z", "", "a", "b", "none"}
		if n := r.IntN(4); n > 0 {
			t.Values = []string{}
			for range n {
				t.Values = append(t.Values, all[r.IntN(len(all))])
			}
		}
		w.selecting = c
		s, err := c.Select(context.Background(), t)
		w.selecting = nil
		if !w.read(err) {
			return
		}
		var got, want []string
		for _, e := range s.Entries {
			got = append(got, e.Key+"="+string(e.Data()))
		}
		for key, at := range w.etcd.states[s.Revision].below(c.prefix) {
			if meets(t, key, at.value) {
				want = append(want, key+"="+at.value)
			}
		}
		slices.Sort(want)
		known := t.Field || !w.unreadable(c, s.Revision)
		if !known {
			want = nil
		}
		if s.Indexed != known || !slices.Equal(got, want) {
			_ = w.fault("select %+v in %s at %d: %q, %t, want %q, %t", t, c.prefix, s.Revision, got, s.Indexed, want, known)
		}
	}},
	{"watch", 4, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		if len(w.watchers) >= 6 {
			w.watchers = slices.Delete(w.watchers, 0, 1) // it disconnects
		}
		at := &watcher{cache: c}
		switch r.IntN(4) {
		case 0: // resumes
			at.revision = 1 + r.Int64N(w.etcd.now())
		case 1: // from the future
			at.revision = w.etcd.now() + r.Int64N(6)
		default: // lists first
			s, err := c.Snapshot(context.Background())
			if !w.read(err) {
				return
			}
			at.revision = s.Revision
		}
		resets := w.resets
		var err error
		at.cursor, err = c.Cursor(context.Background(), at.revision)
		if !w.read(err) {
			return
		}
		at.line = w.etcd
		if resets != w.resets {
			return // its revision was of another history
		}
		if at.revision <= w.etcd.now() {
			at.state = w.etcd.valuesAt(c.prefix, at.revision)
		}
		w.watchers = append(w.watchers, at)
	}},
	{"next", 14, func(w *world, r *rand.Rand) {
		if len(w.watchers) == 0 {
			return
		}
		which := r.IntN(len(w.watchers))
		at := w.watchers[which]
		next := func() (Changes, error) { return at.cursor.Available(context.Background()) }
		switch r.IntN(3) {
		case 0:
			poke := make(chan struct{})
			close(poke)
			next = func() (Changes, error) { return at.cursor.Next(context.Background(), poke) }
		case 1:
			if !at.mustHaveMore(w) {
				break
			}
			// A cursor that sleeps in spite of unread changes sleeps for an hour.
			next = func() (Changes, error) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				return at.cursor.Next(ctx, nil)
			}
		}
		if _, over := at.read(w, next); over {
			w.watchers = slices.Delete(w.watchers, which, which+1)
		}
	}},
	{"catch up", 4, func(w *world, r *rand.Rand) {
		if len(w.watchers) == 0 {
			return
		}
		which := r.IntN(len(w.watchers))
		at := w.watchers[which]
		for calls := 0; ; calls++ {
			before, failing := at.mayExpire, w.failList > 0 || w.failSince > 0
			changes, over := at.read(w, func() (Changes, error) { return at.cursor.Available(context.Background()) })
			if over {
				w.watchers = slices.Delete(w.watchers, which, which+1)
				return
			}
			if w.trouble != nil || !before && at.mayExpire || failing {
				return
			}
			if len(changes.List) == 0 {
				if complete := w.complete(at.cache); changes.Revision < complete && !at.mayExpire && !at.mustExpire {
					_ = w.fault("a cursor of %s ends at %d, the cache is at %d", at.cache.prefix, changes.Revision, complete)
				}
				return
			}
			if calls > 1000 {
				_ = w.fault("a cursor of %s never ends", at.cache.prefix)
				return
			}
		}
	}},
	{"await", 2, func(w *world, r *rand.Rand) {
		want := w.etcd.now()
		if err := w.space.Await(context.Background(), want); err != nil || w.space.Revision() < want {
			_ = w.fault("await %d: at %d, %v", want, w.space.Revision(), err)
		}
		c := w.caches[r.IntN(len(w.caches))]
		w.decrypt(c, 0)
		want = min(want, w.space.Revision()) // others may have restored a backup
		if err := c.Await(context.Background(), want); err != nil || c.Revision() < want {
			_ = w.fault("%s: await %d: at %d, %v", c.prefix, want, c.Revision(), err)
		}
	}},
	{"a failure is coming", 2, func(w *world, r *rand.Rand) {
		if r.IntN(2) == 0 {
			w.failList = 1 + r.IntN(3)
		} else {
			w.failSince = 1 + r.IntN(3)
		}
	}},
}

// mustHaveMore reports whether a watcher has unread changes in any case.
func (at *watcher) mustHaveMore(w *world) bool {
	if at.mustExpire || at.mayExpire || at.line != w.etcd {
		return false
	}
	for revision := at.revision + 1; revision <= w.complete(at.cache); revision++ {
		for _, e := range at.line.events[revision] {
			if strings.HasPrefix(e.Key, at.cache.prefix) {
				return true
			}
		}
	}
	return false
}

// read records a reader's error and reports whether there was none.
func (w *world) read(err error) bool {
	if err != nil && !isInjected(err) {
		_ = w.fault("read: %v", err)
	}
	return err == nil
}

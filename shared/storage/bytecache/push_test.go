package bytecache

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// recordingPusher is a Pusher that records the pushed revisions.
type recordingPusher struct {
	refuses bool
	pushed  []int64
	flushed int
}

func (h *recordingPusher) Push(changes Changes, batch *Batch) bool {
	if h.refuses {
		return false
	}
	for _, c := range changes.List {
		h.pushed = append(h.pushed, c.Revision)
	}
	batch.Flush(h)
	return true
}

func (h *recordingPusher) Flush() { h.flushed++ }

// TestPushesWhileOwnerSleeps checks that changes are pushed while the owner sleeps; that
// the owner is woken by its channel and for refused changes; and that its cursor is then
// after the pushed changes.
func TestPushesWhileOwnerSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := loadedCache(t, filled(5, 10), Config{}, Options{})
		cursor, err := c.Cursor(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		h, poke := &recordingPusher{}, make(chan struct{}, 1)
		cursor.PushTo(h, poke)
		type seen struct {
			Changes
			err error
		}
		answers := make(chan seen, 1)
		ctx, cancel := context.WithCancel(t.Context())
		next := func() {
			go func() {
				changes, err := cursor.Next(ctx, nil)
				answers <- seen{changes, err}
			}()
			synctest.Wait()
		}
		expectPushed := func(want ...int64) {
			t.Helper()
			synctest.Wait()
			if len(h.pushed) != len(want) || len(want) > 0 && h.pushed[len(want)-1] != want[len(want)-1] {
				t.Errorf("pushed %v, want %v", h.pushed, want)
			}
		}
		next()
		apply(c, modify(1, 601, "x"))
		expectPushed(601)
		apply(c, modify(2, 602, "x"))
		expectPushed(601, 602)
		if h.flushed != 2 || len(answers) != 0 {
			t.Errorf("flushed %d times, woken %d times", h.flushed, len(answers))
		}
		h.refuses = true
		apply(c, modify(3, 603, "x"))
		expectPushed(601, 602)
		if got := <-answers; got.err != nil || len(got.List) != 1 || got.List[0].Revision != 603 || got.Revision != 603 {
			t.Errorf("after a refused push: %+v", got)
		}
		// Nothing is pushed while the owner is awake.
		h.refuses = false
		apply(c, modify(4, 604, "x"))
		expectPushed(601, 602)
		next()
		if got := <-answers; got.err != nil || len(got.List) != 1 || got.List[0].Revision != 604 {
			t.Errorf("after a push: %+v", got)
		}
		next()
		poke <- struct{}{}
		if got := <-answers; got.err != nil || len(got.List) != 0 || got.Revision != 604 {
			t.Errorf("poked: %+v", got)
		}
		next()
		apply(c, modify(1, 605, "x"))
		expectPushed(601, 602, 605)
		cancel()
		if got := <-answers; !errors.Is(got.err, context.Canceled) {
			t.Errorf("the end: %+v", got)
		}
		if n := len(c.wakeups.byInterest); n != 0 {
			t.Errorf("%d wakeups are left", n)
		}
	})
}

// TestPushPanicWakesOwner checks that a panic in Push wakes the owner, which gets the same
// changes.
func TestPushPanicWakesOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := loadedCache(t, filled(5, 10), Config{}, Options{})
		cursor, err := c.Cursor(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		cursor.PushTo(panicking{}, make(chan struct{}, 1))
		answers := make(chan Changes, 1)
		go func() {
			changes, _ := cursor.Next(t.Context(), nil)
			answers <- changes
		}()
		synctest.Wait()
		apply(c, modify(1, 601, "x"))
		if got := <-answers; len(got.List) != 1 || got.List[0].Revision != 601 {
			t.Errorf("got %+v", got)
		}
	})
}

type panicking struct{}

func (panicking) Push(Changes, *Batch) bool { panic("a bug") }

// randomPusher accepts some changes, and reads the others with Next.
type randomPusher struct {
	t        *testing.T
	o        *lockedEtcd
	concerns func(int64) bool
	random   *rand.Rand
	last     int64
	wake     chan struct{}

	// at is guarded by the cursor's moveMu.
	at     int64
	pushed *atomic.Int64
}

func (l *randomPusher) Push(changes Changes, _ *Batch) bool {
	switch l.random.IntN(40) {
	case 0, 1, 2, 3:
		return false
	case 4:
		panic("now and then")
	}
	if !l.check(changes) {
		return false
	}
	l.pushed.Add(1)
	if l.at >= l.last {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// check reports missing changes.
func (l *randomPusher) check(changes Changes) bool {
	seen := map[int64]bool{}
	for _, c := range changes.List {
		if c.Revision <= l.at {
			l.t.Errorf("revision %d after %d", c.Revision, l.at)
			return false
		}
		seen[c.Revision] = true
	}
	for ; l.at < changes.Revision; l.at++ {
		if l.concerns(l.at+1) && !seen[l.at+1] {
			l.t.Errorf("missed revision %d", l.at+1)
			return false
		}
	}
	return true
}

// watchWithPusher watches with a Pusher, and lists again whenever history is gone.
func (o *lockedEtcd) watchWithPusher(ctx context.Context, t *testing.T, cache *Cache, r *rand.Rand, last int64, pushed *atomic.Int64) {
	for !t.Failed() {
		s, err := cache.Snapshot(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if s.Revision >= last {
			return // nothing will wake it any more
		}
		l := &randomPusher{t: t, o: o, random: r, last: last, wake: make(chan struct{}, 1), at: s.Revision, pushed: pushed}
		interest, digit := Interest{}, r.Int64N(10)
		l.concerns = func(int64) bool { return true }
		if r.IntN(2) == 0 {
			interest = Interest{Field: "last", Value: strconv.FormatInt(digit, 10)}
			l.concerns = func(revision int64) bool { return revision%10 == digit || (revision-o.keys)%10 == digit }
		}
		cursor, err := cache.CursorFor(ctx, l.at, interest)
		if err != nil {
			t.Error(err)
			return
		}
		cursor.PushTo(l, l.wake)
		for calls := r.IntN(3000); calls > 0 || l.at >= last-3000; calls-- {
			ctx, cancel := ctx, context.CancelFunc(func() {})
			if r.IntN(10) == 0 {
				ctx, cancel = context.WithCancel(ctx)
				cancel() // it wakes while it falls asleep
			}
			changes, err := cursor.Next(ctx, nil)
			cancel()
			var gone *ExpiredError
			if errors.As(err, &gone) {
				break
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
				return
			}
			if err == nil && !l.check(changes) {
				return
			}
			o.seen.Store(max(o.seen.Load(), l.at))
			if l.at >= last {
				return
			}
		}
	}
}

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

// hearer is a Pusher that takes what it wants.
type hearer struct {
	refuses bool
	heard   []int64
	flushed int
}

func (h *hearer) Push(changes Changes, batch *Batch) bool {
	if h.refuses {
		return false
	}
	for _, c := range changes.List {
		h.heard = append(h.heard, c.Revision)
	}
	batch.Flush(h)
	return true
}

func (h *hearer) Flush() { h.flushed++ }

// TestPushed: a cursor whose owner sleeps is told what it would be woken for; the owner is
// woken for what is refused, and by its own channel, and finds the cursor after all that
// was taken.
func TestPushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := loadedCache(t, filled(5, 10), Config{}, Options{})
		cursor, err := c.Cursor(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		h, poke := &hearer{}, make(chan struct{}, 1)
		cursor.PushTo(h, poke)
		type told struct {
			Changes
			err error
		}
		answers := make(chan told, 1)
		ctx, cancel := context.WithCancel(t.Context())
		next := func() {
			go func() {
				changes, err := cursor.Next(ctx, nil)
				answers <- told{changes, err}
			}()
			synctest.Wait()
		}
		heard := func(want ...int64) {
			t.Helper()
			synctest.Wait()
			if len(h.heard) != len(want) || len(want) > 0 && h.heard[len(want)-1] != want[len(want)-1] {
				t.Errorf("heard %v, want %v", h.heard, want)
			}
		}
		next()
		apply(c, modify(1, 601, "x"))
		heard(601)
		apply(c, modify(2, 602, "x"))
		heard(601, 602)
		if h.flushed != 2 || len(answers) != 0 {
			t.Errorf("flushed %d times, woken %d times", h.flushed, len(answers))
		}
		h.refuses = true
		apply(c, modify(3, 603, "x"))
		heard(601, 602)
		if got := <-answers; got.err != nil || len(got.List) != 1 || got.List[0].Revision != 603 || got.Revision != 603 {
			t.Errorf("what was refused: %+v", got)
		}
		// While the owner is awake nobody else is told.
		h.refuses = false
		apply(c, modify(4, 604, "x"))
		heard(601, 602)
		next()
		if got := <-answers; got.err != nil || len(got.List) != 1 || got.List[0].Revision != 604 {
			t.Errorf("what came meanwhile: %+v", got)
		}
		next()
		poke <- struct{}{}
		if got := <-answers; got.err != nil || len(got.List) != 0 || got.Revision != 604 {
			t.Errorf("poked: %+v", got)
		}
		next()
		apply(c, modify(1, 605, "x"))
		heard(601, 602, 605)
		cancel()
		if got := <-answers; !errors.Is(got.err, context.Canceled) {
			t.Errorf("the end: %+v", got)
		}
		if n := len(c.alarms.each); n != 0 {
			t.Errorf("%d alarms are left", n)
		}
	})
}

// TestPushPanics: the owner is woken, and meets it itself.
func TestPushPanics(t *testing.T) {
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

// listener is pushed to at random, and hears the rest from Next.
type listener struct {
	t        *testing.T
	o        *lockedEtcd
	concerns func(int64) bool
	random   *rand.Rand
	last     int64
	wake     chan struct{}

	at     int64 // belongs to whoever may move the cursor
	pushed *atomic.Int64
}

func (l *listener) Push(changes Changes, _ *Batch) bool {
	switch l.random.IntN(40) {
	case 0, 1, 2, 3:
		return false
	case 4:
		panic("now and then")
	}
	if !l.hear(changes) {
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

// hear checks that nothing was left out.
func (l *listener) hear(changes Changes) bool {
	told := map[int64]bool{}
	for _, c := range changes.List {
		if c.Revision <= l.at {
			l.t.Errorf("told of revision %d after %d", c.Revision, l.at)
			return false
		}
		told[c.Revision] = true
	}
	for ; l.at < changes.Revision; l.at++ {
		if l.concerns(l.at+1) && !told[l.at+1] {
			l.t.Errorf("not told of revision %d", l.at+1)
			return false
		}
	}
	return true
}

// listenToTheEnd is pushed to, and lists again whenever history is gone.
func (o *lockedEtcd) listenToTheEnd(ctx context.Context, t *testing.T, cache *Cache, r *rand.Rand, last int64, pushed *atomic.Int64) {
	for !t.Failed() {
		s, err := cache.Snapshot(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if s.Revision >= last {
			return // nothing will wake it any more
		}
		l := &listener{t: t, o: o, random: r, last: last, wake: make(chan struct{}, 1), at: s.Revision, pushed: pushed}
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
			if err == nil && !l.hear(changes) {
				return
			}
			o.seen.Store(max(o.seen.Load(), l.at))
			if l.at >= last {
				return
			}
		}
	}
}

package fairness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// TestOrder: requests are dispatched directly while there are seats. Then they wait, are
// dispatched as seats become free, and later requests do not overtake waiting ones.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), manyQueues, 3)
		var calls []*call
		for range 5 {
			calls = append(calls, l.call(t.Context(), seats(1), "a"))
		}
		l.expect(t, "five for three seats", 2, 3, 3, 5)
		if n := len(l.Dump(true).QueuelessExecutingRequests); n != 3 {
			t.Errorf("%d requests were dispatched directly", n)
		}
		close(calls[0].end)
		l.expect(t, "one has ended", 1, 3, 3, 4)
		if calls[3].running.Load() == calls[4].running.Load() {
			t.Error("not exactly one of the waiting requests is dispatched")
		}
		close(calls[1].end)
		close(calls[2].end)
		l.expect(t, "all direct requests have ended", 0, 2, 2, 2)
		if n := len(l.Dump(false).QueuelessExecutingRequests); n != 0 {
			t.Errorf("%d requests are shown as direct", n)
		}
		calls = append(calls, l.call(t.Context(), seats(1), "b"))
		l.expect(t, "nobody waits any more", 0, 3, 3, 3)
		if dump := l.Dump(true); len(dump.QueuelessExecutingRequests) != 1 || dump.QueuelessExecutingRequests[0].UserName != "b" || dump.QueuelessExecutingRequests[0].RequestInfo.Name != "b" {
			t.Errorf("dump: %+v", dump.QueuelessExecutingRequests)
		}
		for _, c := range calls[3:] {
			close(c.end)
		}
		l.expect(t, "the end", 0, 0, 0, 0)
	})
}

// TestFlowsAreFair: once a request waits, the queues decide. A flow with many requests does
// not starve another.
func TestFlowsAreFair(t *testing.T) {
	for name, factory := range map[string]fairqueuing.QueueSetFactory{"upstream": upstream(), "ours": ours()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLevel(t, factory, manyQueues, 4)
				var crowd []*call
				for range 40 {
					crowd = append(crowd, l.call(t.Context(), seats(1), "crowd"))
				}
				synctest.Wait()
				mouse := l.call(t.Context(), seats(1), "mouse")
				ended := 0
				for ; !mouse.running.Load() && ended < len(crowd); ended++ {
					time.Sleep(10 * time.Millisecond)
					for _, c := range crowd {
						if c.running.Load() {
							close(c.end)
							c.running.Store(false)
							break
						}
					}
					synctest.Wait()
				}
				if ended > 7 { // one round: the queues of the crowd, and its own
					t.Errorf("the mouse waited for %d requests of the crowd", ended)
				}
				close(mouse.end)
				for range crowd {
					for _, c := range crowd {
						if c.running.CompareAndSwap(true, false) {
							close(c.end)
						}
					}
					synctest.Wait()
				}
				l.expect(t, "the end", 0, 0, 0, 0)
			})
		})
	}
}

// TestRejections: the queues reject requests that wait too long, and requests that find
// them full.
func TestRejections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), fairqueuing.QueuingConfig{Name: testedLevel, DesiredNumQueues: 1, QueueLengthLimit: 2, HandSize: 1}, 1)
		first := l.call(t.Context(), seats(1), "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		impatient := l.call(ctx, seats(1), "a")
		patient := l.call(t.Context(), seats(1), "a")
		l.expect(t, "two wait", 2, 1, 1, 3)
		if c := l.call(t.Context(), seats(1), "a"); !c.rejected.Load() {
			t.Error("a full queue accepts a request")
		}
		time.Sleep(2 * time.Second)
		l.expect(t, "one has given up", 1, 1, 1, 2)
		if !impatient.rejected.Load() || impatient.running.Load() {
			t.Error("a request that has waited too long is dispatched")
		}
		close(first.end)
		l.expect(t, "the other is dispatched", 0, 1, 1, 1)
		if !patient.running.Load() {
			t.Error("another request is dispatched")
		}
		close(patient.end)
		l.expect(t, "the end", 0, 0, 0, 0)
		if dump := l.Dump(false); dump.Dispatched != 1 || dump.Rejected != 2 {
			t.Errorf("%d dispatched directly, %d rejected", dump.Dispatched, dump.Rejected)
		}
	})
}

// TestWideRequests: a request that needs more seats than direct requests leave waits for
// them, although inner admits it when it knows of no other request.
func TestWideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), manyQueues, 10)
		narrow := l.call(t.Context(), seats(7), "a")
		wide := l.call(t.Context(), seats(5), "b")
		widest := l.call(t.Context(), seats(20), "c")
		l.expect(t, "seven of ten are taken", 2, 1, 7, 32)
		close(narrow.end)
		l.expect(t, "they are free", 1, 1, 5, 25)
		close(wide.end)
		l.expect(t, "no other request executes", 0, 1, 20, 20)
		if !widest.running.Load() {
			t.Error("another request is dispatched")
		}
		close(widest.end)
		l.expect(t, "the end", 0, 0, 0, 0)
	})
}

// TestSeatsLinger: the seats of a write are released after its additional latency.
func TestSeatsLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), manyQueues, 2)
		write := l.call(t.Context(), flowcontrolrequest.WorkEstimate{InitialSeats: 1, FinalSeats: 2, AdditionalLatency: time.Second}, "a")
		read := l.call(t.Context(), seats(1), "a")
		l.expect(t, "the write has both seats", 1, 1, 2, 3)
		close(write.end)
		l.expect(t, "it has been answered", 1, 0, 2, 3)
		time.Sleep(1100 * time.Millisecond)
		l.expect(t, "its seats are free", 0, 1, 1, 1)
		close(read.end)
		l.expect(t, "the end", 0, 0, 0, 0)
	})
}

// TestPanics: a handler that panics releases its seats.
func TestPanics(t *testing.T) {
	l := newLevel(t, ours(), manyQueues, 2)
	width := seats(2)
	for range 3 {
		r, _ := l.StartRequest(t.Context(), &width, 1, "a", "schema", nil, nil, nil)
		if r == nil {
			t.Fatal("rejected")
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is lost")
				}
			}()
			r.Finish(func() { panic("handler") })
		}()
	}
	if !l.IsIdle() || l.seats.get() != 0 || l.demand.get() != 0 {
		t.Errorf("idle %t, seats %v, demand %v", l.IsIdle(), l.seats.get(), l.demand.get())
	}
}

// TestConfigurations: upstream handles levels without queues or without limits. Added seats
// are used, and removed seats are not reused.
func TestConfigurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		without := fairqueuing.QueuingConfig{Name: testedLevel}
		l := newLevel(t, ours(), without, 1)
		first := l.call(t.Context(), seats(1), "a")
		if c := l.call(t.Context(), seats(1), "a"); !c.rejected.Load() {
			t.Error("without queues, a second request is dispatched for one seat")
		}
		l.configure(t, manyQueues, 1)
		second := l.call(t.Context(), seats(1), "a")
		l.expect(t, "with queues", 1, 1, 1, 2)
		l.configure(t, manyQueues, 3)
		third := l.call(t.Context(), seats(1), "a")
		l.expect(t, "with more seats", 0, 3, 3, 3)
		l.configure(t, manyQueues, 1)
		fourth := l.call(t.Context(), seats(1), "a")
		close(first.end)
		close(second.end)
		l.expect(t, "with fewer seats", 1, 1, 1, 2)
		l.configure(t, without, 1)
		if c := l.call(t.Context(), seats(1), "a"); !c.rejected.Load() {
			t.Error("without queues, a second request is dispatched beside a direct one")
		}
		close(third.end)
		l.expect(t, "the waiting request is dispatched", 0, 1, 1, 1)
		close(fourth.end)
		l.expect(t, "the end", 0, 0, 0, 0)

		exempt := newLevel(t, ours(), fairqueuing.QueuingConfig{Name: testedLevel, DesiredNumQueues: -1}, 0)
		var calls []*call
		for range 5 {
			calls = append(calls, exempt.call(t.Context(), seats(1), "a"))
		}
		exempt.expect(t, "exempt", 0, 5, 5, 5)
		for _, c := range calls {
			close(c.end)
		}
		exempt.expect(t, "the end", 0, 0, 0, 0)
	})
}

// TestLikeUpstream: with random requests of one seat each and changing limits, as many
// requests wait, execute and are rejected as with upstream's queue sets.
func TestLikeUpstream(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			q := fairqueuing.QueuingConfig{Name: testedLevel, DesiredNumQueues: 1 + r.IntN(3), QueueLengthLimit: 100, HandSize: 1}
			limit := 1 + r.IntN(6)
			levels := []*level{newLevel(t, upstream(), q, limit), newLevel(t, ours(), q, limit)}
			calls := make([][]*call, len(levels))
			for step := range 60 {
				what, flow := r.IntN(10), fmt.Sprint(r.IntN(4))
				if what == 0 {
					limit = 1 + r.IntN(6)
				}
				for i, l := range levels {
					switch {
					case what == 0:
						l.configure(t, q, limit)
					case what < 6:
						calls[i] = append(calls[i], l.call(t.Context(), seats(1), flow))
					default:
						for _, c := range calls[i] {
							if c.running.CompareAndSwap(true, false) {
								close(c.end)
								break
							}
						}
					}
					synctest.Wait()
				}
				time.Sleep(time.Millisecond)
				if t.Failed() {
					return
				}
				want := levels[0]
				levels[1].expect(t, fmt.Sprintf("seed %d, step %d", seed, step), want.waiting.get(), want.executing.get(), want.seats.get(), want.demand.get())
			}
			for i, l := range levels {
				l.configure(t, q, 1000)
				synctest.Wait()
				for _, c := range calls[i] {
					if c.running.CompareAndSwap(true, false) {
						close(c.end)
					}
				}
				l.expect(t, "the end", 0, 0, 0, 0)
			}
		})
	}
}

// TestSeatsAreNotExceeded by many concurrent requests, all of which are executed.
func TestSeatsAreNotExceeded(t *testing.T) {
	const limit = 10
	l := newLevel(t, ours(), manyQueues, limit)
	var taken, executed atomic.Int64
	var callers sync.WaitGroup
	for caller := range 24 {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(caller), 2))
			for range 400 {
				width := seats(1 + r.Uint64N(4))
				req, _ := l.StartRequest(t.Context(), &width, r.Uint64(), "a", "schema", nil, nil, nil)
				if req == nil {
					t.Error("rejected")
					continue
				}
				spin := r.IntN(2000)
				req.Finish(func() {
					executed.Add(1)
					if n := taken.Add(int64(width.InitialSeats)); n > limit {
						t.Errorf("%d seats are occupied, of %d", n, limit)
					}
					for range spin {
						_ = r.Uint64()
					}
					taken.Add(-int64(width.InitialSeats))
				})
			}
		})
	}
	callers.Wait()
	if n := executed.Load(); n != 24*400 {
		t.Errorf("%d were executed", n)
	}
	if !l.IsIdle() || l.seats.get() != 0 || l.demand.get() != 0 || l.waiting.get() != 0 {
		t.Errorf("idle %t, seats %v, demand %v, waiting %v", l.IsIdle(), l.seats.get(), l.demand.get(), l.waiting.get())
	}
	if l.Dump(false).Dispatched == 0 {
		t.Error("no request was dispatched directly")
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, s := range []struct {
		name    string
		factory fairqueuing.QueueSetFactory
	}{{"queued", upstream()}, {"direct", ours()}} {
		b.Run(s.name, func(b *testing.B) {
			q := manyQueues
			q.DesiredNumQueues = 128
			l := newLevel(b, s.factory, q, 200)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				width := seats(1)
				for hash := uint64(0); pb.Next(); hash++ {
					r, _ := l.StartRequest(b.Context(), &width, hash, "flow", "schema", nil, nil, nil)
					r.Finish(func() {})
				}
			})
		})
	}
}

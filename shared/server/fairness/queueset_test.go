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

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// gauge keeps its value.
type gauge struct {
	mu    sync.Mutex
	value float64
	most  float64
}

func (g *gauge) Set(v float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.value, g.most = v, max(g.most, v)
}

func (g *gauge) Add(v float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.value += v
	g.most = max(g.most, g.value)
}

func (g *gauge) get() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.value
}

func (g *gauge) Inc()                   { g.Add(1) }
func (g *gauge) Dec()                   { g.Add(-1) }
func (g *gauge) SetToCurrentTime()      {}
func (g *gauge) SetDenominator(float64) {}

// level is a priority level: a set, and what its gauges show.
type level struct {
	fairqueuing.QueueSet
	waiting, executing, seats, demand gauge
}

const testedLevel = "tested"

func upstream() fairqueuing.QueueSetFactory { return queueset.NewQueueSetFactory(eventclock.Real{}) }

func ours() fairqueuing.QueueSetFactory { return QueueSets(upstream(), eventclock.Real{}) }

var manyQueues = fairqueuing.QueuingConfig{Name: testedLevel, DesiredNumQueues: 64, QueueLengthLimit: 50, HandSize: 6}

func newLevel(t testing.TB, f fairqueuing.QueueSetFactory, q fairqueuing.QueuingConfig, limit int) *level {
	t.Helper()
	l := new(level)
	c, err := f.BeginConstruction(q, metrics.RatioedGaugePair{RequestsWaiting: &l.waiting, RequestsExecuting: &l.executing}, &l.seats, &l.demand)
	if err != nil {
		t.Fatal(err)
	}
	l.QueueSet = c.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: limit, ConcurrencyDenominator: max(1, limit)})
	return l
}

func (l *level) configure(t testing.TB, q fairqueuing.QueuingConfig, limit int) {
	t.Helper()
	c, err := l.BeginConfigChange(q)
	if err != nil {
		t.Fatal(err)
	}
	if c.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: limit, ConcurrencyDenominator: max(1, limit)}) != l.QueueSet {
		t.Fatal("another set")
	}
}

// call is a request in a bubble, from which it is seen what has become of it.
type call struct {
	refused, running, over atomic.Bool
	end                    chan struct{}
}

func (l *level) call(ctx context.Context, width flowcontrolrequest.WorkEstimate, flow string) *call {
	c := &call{end: make(chan struct{})}
	var hash uint64
	for _, b := range []byte(flow) {
		hash = hash*1099511628211 + uint64(b)
	}
	info, who := &apirequest.RequestInfo{Verb: "get", Name: flow}, &user.DefaultInfo{Name: flow}
	ctx = apirequest.WithUser(apirequest.WithRequestInfo(ctx, info), who)
	r, _ := l.StartRequest(ctx, &width, hash, flow, "schema", info, who, func(bool) {})
	if r == nil {
		c.refused.Store(true)
		return c
	}
	go func() {
		executed := false
		r.Finish(func() {
			executed = true
			c.running.Store(true)
			<-c.end
			c.running.Store(false)
		})
		c.refused.Store(!executed)
		c.over.Store(true)
	}()
	return c
}

func one(seats uint64) flowcontrolrequest.WorkEstimate {
	return flowcontrolrequest.WorkEstimate{InitialSeats: seats}
}

func (l *level) shows(t *testing.T, when string, waiting, executing, seats, demand float64) {
	t.Helper()
	synctest.Wait()
	got := [4]float64{l.waiting.get(), l.executing.get(), l.seats.get(), l.demand.get()}
	if want := [4]float64{waiting, executing, seats, demand}; got != want {
		t.Errorf("%s: waiting, executing, seats, demand are %v, want %v", when, got, want)
	}
	dump := l.Dump(true)
	if dump.Waiting != int(waiting) || dump.Executing != int(executing) || dump.SeatsInUse != int(seats) {
		t.Errorf("%s: dump shows %d waiting, %d executing, %d seats", when, dump.Waiting, dump.Executing, dump.SeatsInUse)
	}
	if idle := waiting+executing == 0; l.IsIdle() != idle {
		t.Errorf("%s: idle is %t", when, !idle)
	}
}

// TestWhoWaits: requests are taken directly until the seats are taken; then they wait, are
// let in as seats come free, and those that come after somebody who waits do not overtake.
func TestWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), manyQueues, 3)
		var calls []*call
		for range 5 {
			calls = append(calls, l.call(t.Context(), one(1), "a"))
		}
		l.shows(t, "five for three seats", 2, 3, 3, 5)
		if n := len(l.Dump(true).QueuelessExecutingRequests); n != 3 {
			t.Errorf("%d were taken directly", n)
		}
		close(calls[0].end)
		l.shows(t, "one has ended", 1, 3, 3, 4)
		if calls[3].running.Load() == calls[4].running.Load() {
			t.Error("not one of those who waited is let in")
		}
		close(calls[1].end)
		close(calls[2].end)
		l.shows(t, "all that were taken directly have ended", 0, 2, 2, 2)
		if n := len(l.Dump(false).QueuelessExecutingRequests); n != 0 {
			t.Errorf("%d are shown as if they had been taken directly", n)
		}
		calls = append(calls, l.call(t.Context(), one(1), "b"))
		l.shows(t, "nobody waits any more", 0, 3, 3, 3)
		if dump := l.Dump(true); len(dump.QueuelessExecutingRequests) != 1 || dump.QueuelessExecutingRequests[0].UserName != "b" || dump.QueuelessExecutingRequests[0].RequestInfo.Name != "b" {
			t.Errorf("dump: %+v", dump.QueuelessExecutingRequests)
		}
		for _, c := range calls[3:] {
			close(c.end)
		}
		l.shows(t, "the end", 0, 0, 0, 0)
	})
}

// TestFlowsAreFair: from the first that waits on, the queues decide: a flow with many
// requests does not keep another one's out.
func TestFlowsAreFair(t *testing.T) {
	for name, factory := range map[string]fairqueuing.QueueSetFactory{"upstream": upstream(), "ours": ours()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLevel(t, factory, manyQueues, 4)
				var crowd []*call
				for range 40 {
					crowd = append(crowd, l.call(t.Context(), one(1), "crowd"))
				}
				synctest.Wait()
				mouse := l.call(t.Context(), one(1), "mouse")
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
				if ended > 7 { // one round: the queues that the crowd has, and its own
					t.Errorf("the mouse waited for %d of the crowd", ended)
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
				l.shows(t, "the end", 0, 0, 0, 0)
			})
		})
	}
}

// TestRefusals are the queues': of who waits too long, and of who finds them full.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), fairqueuing.QueuingConfig{Name: testedLevel, DesiredNumQueues: 1, QueueLengthLimit: 2, HandSize: 1}, 1)
		first := l.call(t.Context(), one(1), "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		impatient := l.call(ctx, one(1), "a")
		patient := l.call(t.Context(), one(1), "a")
		l.shows(t, "two wait", 2, 1, 1, 3)
		if c := l.call(t.Context(), one(1), "a"); !c.refused.Load() {
			t.Error("there is room in a queue that is full")
		}
		time.Sleep(2 * time.Second)
		l.shows(t, "one has given up", 1, 1, 1, 2)
		if !impatient.refused.Load() || impatient.running.Load() {
			t.Error("who has waited too long is let in")
		}
		close(first.end)
		l.shows(t, "the other is let in", 0, 1, 1, 1)
		if !patient.running.Load() {
			t.Error("it is another one")
		}
		close(patient.end)
		l.shows(t, "the end", 0, 0, 0, 0)
		if dump := l.Dump(false); dump.Dispatched != 1 || dump.Rejected != 2 {
			t.Errorf("%d taken directly, %d refused", dump.Dispatched, dump.Rejected)
		}
	})
}

// TestWideRequests: one that is wider than the seats that direct ones have left is not let
// in beside them, although the queues would let it in where they know of nobody else.
func TestWideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), manyQueues, 10)
		narrow := l.call(t.Context(), one(7), "a")
		wide := l.call(t.Context(), one(5), "b")
		widest := l.call(t.Context(), one(20), "c")
		l.shows(t, "seven of ten are taken", 2, 1, 7, 32)
		close(narrow.end)
		l.shows(t, "they are free", 1, 1, 5, 25)
		close(wide.end)
		l.shows(t, "nobody else is there", 0, 1, 20, 20)
		if !widest.running.Load() {
			t.Error("it is another one")
		}
		close(widest.end)
		l.shows(t, "the end", 0, 0, 0, 0)
	})
}

// TestSeatsLinger: seats of a write are given back when what it made others do is done.
func TestSeatsLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLevel(t, ours(), manyQueues, 2)
		write := l.call(t.Context(), flowcontrolrequest.WorkEstimate{InitialSeats: 1, FinalSeats: 2, AdditionalLatency: time.Second}, "a")
		read := l.call(t.Context(), one(1), "a")
		l.shows(t, "the write has both seats", 1, 1, 2, 3)
		close(write.end)
		l.shows(t, "it has been answered", 1, 0, 2, 3)
		time.Sleep(1100 * time.Millisecond)
		l.shows(t, "its seats are free", 0, 1, 1, 1)
		close(read.end)
		l.shows(t, "the end", 0, 0, 0, 0)
	})
}

// TestPanics: seats are given back.
func TestPanics(t *testing.T) {
	l := newLevel(t, ours(), manyQueues, 2)
	width := one(2)
	for range 3 {
		r, _ := l.StartRequest(t.Context(), &width, 1, "a", "schema", nil, nil, nil)
		if r == nil {
			t.Fatal("refused")
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

// TestConfigurations: levels without queues and those without limits are upstream's; seats
// that are added are taken, and seats that are taken away are not given to anybody.
func TestConfigurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		without := fairqueuing.QueuingConfig{Name: testedLevel}
		l := newLevel(t, ours(), without, 1)
		first := l.call(t.Context(), one(1), "a")
		if c := l.call(t.Context(), one(1), "a"); !c.refused.Load() {
			t.Error("a second one for one seat, without queues")
		}
		l.configure(t, manyQueues, 1)
		second := l.call(t.Context(), one(1), "a")
		l.shows(t, "with queues", 1, 1, 1, 2)
		l.configure(t, manyQueues, 3)
		third := l.call(t.Context(), one(1), "a")
		l.shows(t, "with more seats", 0, 3, 3, 3)
		l.configure(t, manyQueues, 1)
		fourth := l.call(t.Context(), one(1), "a")
		close(first.end)
		close(second.end)
		l.shows(t, "with fewer seats", 1, 1, 1, 2)
		l.configure(t, without, 1)
		if c := l.call(t.Context(), one(1), "a"); !c.refused.Load() {
			t.Error("without queues: a second one beside one that was taken directly")
		}
		close(third.end)
		l.shows(t, "who waits is let in", 0, 1, 1, 1)
		close(fourth.end)
		l.shows(t, "the end", 0, 0, 0, 0)

		exempt := newLevel(t, ours(), fairqueuing.QueuingConfig{Name: testedLevel, DesiredNumQueues: -1}, 0)
		var calls []*call
		for range 5 {
			calls = append(calls, exempt.call(t.Context(), one(1), "a"))
		}
		exempt.shows(t, "exempt", 0, 5, 5, 5)
		for _, c := range calls {
			close(c.end)
		}
		exempt.shows(t, "the end", 0, 0, 0, 0)
	})
}

// TestLikeUpstream: the same random requests of one seat each, with changing limits, leave
// as many waiting, executing, and refused as without the way past the queues.
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
						calls[i] = append(calls[i], l.call(t.Context(), one(1), flow))
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
				levels[1].shows(t, fmt.Sprintf("seed %d, step %d", seed, step), want.waiting.get(), want.executing.get(), want.seats.get(), want.demand.get())
			}
			for i, l := range levels {
				l.configure(t, q, 1000)
				synctest.Wait()
				for _, c := range calls[i] {
					if c.running.CompareAndSwap(true, false) {
						close(c.end)
					}
				}
				l.shows(t, "the end", 0, 0, 0, 0)
			}
		})
	}
}

// TestSeatsAreNotExceeded by many goroutines at once, and none of them is forgotten.
func TestSeatsAreNotExceeded(t *testing.T) {
	const limit = 10
	l := newLevel(t, ours(), manyQueues, limit)
	var taken, executed atomic.Int64
	var callers sync.WaitGroup
	for caller := range 24 {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(caller), 2))
			for range 400 {
				width := one(1 + r.Uint64N(4))
				req, _ := l.StartRequest(t.Context(), &width, r.Uint64(), "a", "schema", nil, nil, nil)
				if req == nil {
					t.Error("refused")
					continue
				}
				spin := r.IntN(2000)
				req.Finish(func() {
					executed.Add(1)
					if n := taken.Add(int64(width.InitialSeats)); n > limit {
						t.Errorf("%d seats are taken, of %d", n, limit)
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
		t.Error("none was taken directly")
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
				width := one(1)
				for hash := uint64(0); pb.Next(); hash++ {
					r, _ := l.StartRequest(b.Context(), &width, hash, "flow", "schema", nil, nil, nil)
					r.Finish(func() {})
				}
			})
		})
	}
}

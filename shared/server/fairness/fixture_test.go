package fairness

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// gauge is a gauge that can be read.
type gauge struct {
	mu    sync.Mutex
	value float64
}

func (g *gauge) Set(v float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.value = v
}

func (g *gauge) Add(v float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.value += v
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

// level is a priority level: a queue set and its gauges.
type level struct {
	fairqueuing.QueueSet
	waiting, executing, seats, demand gauge
}

const testedLevel = "tested"

func upstream() fairqueuing.QueueSetFactory { return queueset.NewQueueSetFactory(eventclock.Real{}) }

func ours() fairqueuing.QueueSetFactory { return NewQueueSetFactory(upstream(), eventclock.Real{}) }

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
		t.Fatal("the configuration made another queue set")
	}
}

// call is a request in a synctest bubble, and its state.
type call struct {
	rejected, running atomic.Bool
	end               chan struct{}
}

func (l *level) call(ctx context.Context, width flowcontrolrequest.WorkEstimate, flow string) *call {
	c := &call{end: make(chan struct{})}
	var hash uint64
	for _, b := range []byte(flow) {
		hash = hash*1099511628211 + uint64(b)
	}
	info, u := &apirequest.RequestInfo{Verb: "get", Name: flow}, &user.DefaultInfo{Name: flow}
	ctx = apirequest.WithUser(apirequest.WithRequestInfo(ctx, info), u)
	r, _ := l.StartRequest(ctx, &width, hash, flow, "schema", info, u, func(bool) {})
	if r == nil {
		c.rejected.Store(true)
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
		c.rejected.Store(!executed)
	}()
	return c
}

func seats(seats uint64) flowcontrolrequest.WorkEstimate {
	return flowcontrolrequest.WorkEstimate{InitialSeats: seats}
}

func (l *level) expect(t *testing.T, when string, waiting, executing, seats, demand float64) {
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

package fairness

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol/debug"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/klog/v2"
)

// QueueSets makes queue sets whose requests wait in those of another factory, and go past
// them where they need not wait.
func QueueSets(queues fairqueuing.QueueSetFactory, clock eventclock.Interface) fairqueuing.QueueSetFactory {
	return &factory{queues, clock}
}

type factory struct {
	queues fairqueuing.QueueSetFactory
	clock  eventclock.Interface
}

// BeginConstruction implements fairqueuing.QueueSetFactory.
func (f *factory) BeginConstruction(q fairqueuing.QueuingConfig, requests metrics.RatioedGaugePair, seats metrics.RatioedGauge, demand metrics.Gauge) (fairqueuing.QueueSetCompleter, error) {
	s := &queueSet{name: q.Name, clock: f.clock, requestsGauge: requests.RequestsExecuting, seatsGauge: seats, demandGauge: demand}
	inner, err := f.queues.BeginConstruction(q,
		metrics.RatioedGaugePair{
			RequestsWaiting:   &counted{requests.RequestsWaiting, s, &s.waiting},
			RequestsExecuting: &counted{requests.RequestsExecuting, s, &s.executing},
		},
		&counted{seats, s, &s.seats}, &demanded{demand, s})
	if err != nil {
		return nil, err
	}
	return &completer{s, q, inner}, nil
}

// completer is a change of the configuration of a set.
type completer struct {
	set   *queueSet
	q     fairqueuing.QueuingConfig
	inner fairqueuing.QueueSetCompleter
}

// Complete implements fairqueuing.QueueSetCompleter.
func (c *completer) Complete(d fairqueuing.DispatchingConfig) fairqueuing.QueueSet {
	s := c.set
	s.tellers.Lock()
	defer s.tellers.Unlock()
	s.mu.Lock()
	s.q, s.d = c.q, d
	s.telling = true
	d.ConcurrencyLimit = s.leftLocked()
	s.mu.Unlock()
	queues := c.inner.Complete(d)
	if s.queues == nil { // it is the same from the first time on, when nobody else has s
		s.queues = queues
	}
	s.mu.Lock()
	s.told, s.telling = d.ConcurrencyLimit, false
	s.mu.Unlock()
	return s
}

// queueSet is a fairqueuing.QueueSet.
type queueSet struct {
	name          string
	clock         eventclock.Interface
	queues        fairqueuing.QueueSet
	requestsGauge metrics.RatioedGauge
	seatsGauge    metrics.RatioedGauge
	demandGauge   metrics.Gauge

	// tellers is held while the queues are told of their seats. It is locked before the
	// lock of the queues, and that before mu.
	tellers sync.Mutex

	// mu guards all below. Nothing of the queues is called with it held.
	mu sync.Mutex
	q  fairqueuing.QueuingConfig
	d  fairqueuing.DispatchingConfig
	// told is how many seats the queues know of, and telling that they are being told of
	// another number.
	told    int
	telling bool

	// waiting and executing are the requests of the queues, seats what they have taken,
	// and demand what they have taken and wait for.
	waiting, executing, seats int
	demand                    float64
	// entering requests are on their way into the queues, and widest is the most seats of
	// one that has come since nobody waited.
	entering, widest int

	// direct are the requests that were taken directly, of which so many have been, and
	// directSeats their seats.
	direct      *direct
	dispatched  int
	directCount int
	directSeats int
}

// BeginConfigChange implements fairqueuing.QueueSet.
func (s *queueSet) BeginConfigChange(q fairqueuing.QueuingConfig) (fairqueuing.QueueSetCompleter, error) {
	inner, err := s.queues.BeginConfigChange(q)
	if err != nil {
		return nil, err
	}
	return &completer{s, q, inner}, nil
}

// IsIdle implements fairqueuing.QueueSet.
func (s *queueSet) IsIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idleLocked()
}

func (s *queueSet) idleLocked() bool {
	return s.directCount == 0 && s.waiting == 0 && s.executing == 0
}

// StartRequest implements fairqueuing.QueueSet.
func (s *queueSet) StartRequest(ctx context.Context, width *flowcontrolrequest.WorkEstimate, hash uint64, flow, schema string, descr1, descr2 any, note fairqueuing.QueueNoteFn) (fairqueuing.Request, bool) {
	seats := width.MaxSeats()
	s.mu.Lock()
	if s.roomLocked(seats) {
		r := s.takeLocked(ctx, width, flow, schema, descr1, descr2)
		s.mu.Unlock()
		r.show(1)
		r.showSeats(seats)
		return r, false
	}
	if s.q.DesiredNumQueues == 0 && s.directSeats > 0 && s.seats+s.directSeats+seats > s.d.ConcurrencyLimit {
		// There were queues when the others were taken, and where seats are all that counts
		// one is let in although there is none, if nobody else is known to be there.
		s.mu.Unlock()
		metrics.AddReject(ctx, s.name, schema, "concurrency-limit")
		return nil, false
	}
	if s.entering == 0 && s.waiting == 0 {
		s.widest = 0
	}
	s.entering++
	s.widest = max(s.widest, seats)
	tell := s.telling || s.told != s.leftLocked()
	s.mu.Unlock()
	if tell {
		s.tell()
	}
	r, idle := s.queues.StartRequest(ctx, width, hash, flow, schema, descr1, descr2, note)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entering--
	// What Finish of r says later on is no more than a hint, which is checked by IsIdle.
	return r, idle && s.idleLocked()
}

// roomLocked tells whether a request may be taken directly. Where nobody waits, and nobody
// is about to, the queues take no further seats.
func (s *queueSet) roomLocked(seats int) bool {
	return s.q.DesiredNumQueues > 0 && s.entering == 0 && s.waiting == 0 &&
		s.seats+s.directSeats+seats <= s.d.ConcurrencyLimit
}

// leftLocked is how many seats the queues may take: none where a request would find fewer
// than it needs, for one that is wider than all seats is let in when nobody else is.
func (s *queueSet) leftLocked() int {
	left := max(0, s.d.ConcurrencyLimit-s.directSeats)
	if s.directSeats > 0 && left < s.widest {
		return 0
	}
	return left
}

// tell tells the queues how many seats they may take.
func (s *queueSet) tell() {
	s.tellers.Lock()
	defer s.tellers.Unlock()
	s.mu.Lock()
	q, d := s.q, s.d
	d.ConcurrencyLimit = s.leftLocked()
	s.telling = s.told != d.ConcurrencyLimit
	tell := s.telling
	s.mu.Unlock()
	if !tell {
		return
	}
	change, err := s.queues.BeginConfigChange(q)
	if err == nil {
		change.Complete(d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.telling = false
	if err != nil { // the same has been accepted before
		klog.ErrorS(err, "priority and fairness: the queues were not told of their seats", "priorityLevel", s.name)
		return
	}
	s.told = d.ConcurrencyLimit
}

// Dump implements fairqueuing.QueueSet. Requests that were taken directly are shown as
// those of a set without queues are.
func (s *queueSet) Dump(details bool) debug.QueueSetDump {
	dump := s.queues.Dump(details)
	s.mu.Lock()
	defer s.mu.Unlock()
	dump.Executing += s.directCount
	dump.SeatsInUse += s.directSeats
	dump.Dispatched += s.dispatched
	for r := s.direct; r != nil; r = r.next {
		dump.QueuelessExecutingRequests = append(dump.QueuelessExecutingRequests, r.dump(details))
	}
	return dump
}

// direct is a request that does not wait.
type direct struct {
	set            *queueSet
	ctx            context.Context
	width          flowcontrolrequest.WorkEstimate
	flow, schema   string
	descr1         any
	descr2         any
	began          time.Time
	previous, next *direct // guarded by the set's mu
}

func (s *queueSet) takeLocked(ctx context.Context, width *flowcontrolrequest.WorkEstimate, flow, schema string, descr1, descr2 any) *direct {
	r := &direct{set: s, ctx: ctx, width: *width, flow: flow, schema: schema, descr1: descr1, descr2: descr2, began: s.clock.Now()}
	r.next = s.direct
	if r.next != nil {
		r.next.previous = r
	}
	s.direct = r
	s.directCount++
	s.dispatched++
	s.addSeatsLocked(width.MaxSeats())
	return r
}

// addSeatsLocked takes seats for direct requests, or gives them back.
func (s *queueSet) addSeatsLocked(n int) {
	s.directSeats += n
	s.demandGauge.Set(s.demand + float64(s.directSeats))
}

// show counts the request among those that are executed, or no more.
func (r *direct) show(n int) {
	metrics.AddRequestsExecuting(r.ctx, r.set.name, r.schema, n)
	r.set.requestsGauge.Add(float64(n))
}

// showSeats counts seats that are taken, or given back.
func (r *direct) showSeats(n int) {
	metrics.AddSeatConcurrencyInUse(r.set.name, r.schema, n)
	r.set.seatsGauge.Add(float64(n))
}

// Finish implements fairqueuing.Request.
func (r *direct) Finish(execute func()) (idle bool) {
	defer func() { idle = r.finish() }() // also if it panics
	execute()
	return false
}

func (r *direct) finish() (idle bool) {
	s := r.set
	s.mu.Lock()
	if r.next != nil {
		r.next.previous = r.previous
	}
	if r.previous != nil {
		r.previous.next = r.next
	} else {
		s.direct = r.next
	}
	r.previous, r.next = nil, nil
	s.directCount--
	idle = s.idleLocked()
	s.mu.Unlock()
	r.show(-1)
	if r.width.AdditionalLatency > 0 {
		// What a write makes watches do goes on after it has been answered.
		s.clock.EventAfterDuration(func(time.Time) { r.release() }, r.width.AdditionalLatency)
	} else {
		r.release()
	}
	return idle
}

// release gives the seats back.
func (r *direct) release() {
	s, seats := r.set, r.width.MaxSeats()
	r.showSeats(-seats)
	s.mu.Lock()
	s.addSeatsLocked(-seats)
	wanted := s.entering > 0 || s.waiting > 0 || s.q.DesiredNumQueues <= 0
	s.mu.Unlock()
	if wanted {
		s.tell()
	}
}

func (r *direct) dump(details bool) debug.RequestDump {
	d := debug.RequestDump{MatchedFlowSchema: r.schema, FlowDistinguisher: r.flow, ArriveTime: r.began, StartTime: r.began, WorkEstimate: r.width}
	if !details {
		return d
	}
	if u, ok := r.descr2.(user.Info); ok {
		d.UserName = u.GetName()
	}
	if info, ok := r.descr1.(*apirequest.RequestInfo); ok {
		d.RequestInfo = *info
	}
	return d
}

// counted is a gauge that a queue set adds to; the sum is kept.
type counted struct {
	metrics.RatioedGauge
	set *queueSet
	sum *int // guarded by the set's mu
}

// Add implements metrics.Gauge.
func (g *counted) Add(n float64) {
	g.set.mu.Lock()
	*g.sum += int(n)
	g.set.mu.Unlock()
	g.RatioedGauge.Add(n)
}

// demanded is the gauge of seats that are taken and waited for, of the queues. It shows
// those that were taken directly, too.
type demanded struct {
	metrics.Gauge
	set *queueSet
}

// Set implements metrics.Gauge.
func (g *demanded) Set(seats float64) {
	g.set.mu.Lock()
	defer g.set.mu.Unlock()
	g.set.demand = seats
	g.Gauge.Set(seats + float64(g.set.directSeats))
}

package fairness

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/util/flowcontrol/debug"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/klog/v2"
)

// NewQueueSetFactory returns a factory of queue sets that dispatch requests directly where
// they need not wait, and otherwise pass them to the queue sets of inner.
func NewQueueSetFactory(inner fairqueuing.QueueSetFactory, clock eventclock.Interface) fairqueuing.QueueSetFactory {
	return &factory{inner, clock}
}

type factory struct {
	inner fairqueuing.QueueSetFactory
	clock eventclock.Interface
}

// BeginConstruction implements fairqueuing.QueueSetFactory.
func (f *factory) BeginConstruction(q fairqueuing.QueuingConfig, requests metrics.RatioedGaugePair, seats metrics.RatioedGauge, demand metrics.Gauge) (fairqueuing.QueueSetCompleter, error) {
	s := &queueSet{name: q.Name, clock: f.clock, requestsGauge: requests.RequestsExecuting, seatsGauge: seats, demandGauge: demand, schemas: sets.New[string]()}
	inner, err := f.inner.BeginConstruction(q,
		metrics.RatioedGaugePair{
			RequestsWaiting:   &countingGauge{requests.RequestsWaiting, s, &s.waiting},
			RequestsExecuting: &countingGauge{requests.RequestsExecuting, s, &s.executing},
		},
		&countingGauge{seats, s, &s.seats}, &demandGauge{demand, s})
	if err != nil {
		return nil, err
	}
	return &completer{s, q, inner}, nil
}

// completer completes a change of a queue set's configuration.
type completer struct {
	set     *queueSet
	queuing fairqueuing.QueuingConfig
	inner   fairqueuing.QueueSetCompleter
}

// Complete implements fairqueuing.QueueSetCompleter.
func (c *completer) Complete(d fairqueuing.DispatchingConfig) fairqueuing.QueueSet {
	s := c.set
	s.configMu.Lock()
	defer s.configMu.Unlock()
	s.mu.Lock()
	s.queuing, s.dispatching = c.queuing, d
	s.configuring = true
	d.ConcurrencyLimit = s.innerLimitLocked()
	s.mu.Unlock()
	inner := c.inner.Complete(d)
	if s.inner == nil { // the first time, when nothing else refers to s; later it is the same
		s.inner = inner
	}
	s.mu.Lock()
	s.innerLimit, s.configuring = d.ConcurrencyLimit, false
	s.mu.Unlock()
	return s
}

// queueSet is a fairqueuing.QueueSet that passes only requests that may wait to inner.
type queueSet struct {
	name          string
	clock         eventclock.Interface
	inner         fairqueuing.QueueSet
	requestsGauge metrics.RatioedGauge
	seatsGauge    metrics.RatioedGauge
	demandGauge   metrics.Gauge

	// configMu is held while inner is configured. It is locked before inner's lock, and
	// inner's lock before mu.
	configMu sync.Mutex

	// mu guards the fields below. No method of inner is called with mu held.
	mu          sync.Mutex
	queuing     fairqueuing.QueuingConfig
	dispatching fairqueuing.DispatchingConfig
	// innerLimit is the concurrency limit of inner. configuring is set while it changes.
	innerLimit  int
	configuring bool

	// waiting and executing count inner's requests, seats those they occupy, and demand the
	// seats that they occupy or wait for.
	waiting, executing, seats int
	demand                    float64
	// entering counts the requests on their way into inner. maxWidth is the largest number
	// of seats of any that entered since nobody waited.
	entering, maxWidth int

	// direct is the list of requests that were dispatched directly and still execute,
	// directCount its length, and dispatched the number of all that ever were. directSeats
	// also counts the seats that finished writes still occupy.
	direct      *directRequest
	directCount int
	dispatched  int
	directSeats int
	// schemas are the flow schemas of requests that were dispatched directly.
	schemas sets.Set[string]
}

// BeginConfigChange implements fairqueuing.QueueSet.
func (s *queueSet) BeginConfigChange(q fairqueuing.QueuingConfig) (fairqueuing.QueueSetCompleter, error) {
	inner, err := s.inner.BeginConfigChange(q)
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
	if s.hasRoomLocked(seats) {
		r := s.dispatchLocked(ctx, width, flow, schema, descr1, descr2)
		first := !s.schemas.Has(schema)
		s.schemas.Insert(schema)
		s.mu.Unlock()
		if first {
			// Nobody waits, which the metrics say instead of nothing.
			metrics.AddRequestsInQueues(ctx, s.name, schema, 0)
			metrics.AddSeatsInQueues(ctx, s.name, schema, 0)
		}
		metrics.ObserveQueueLength(ctx, s.name, schema, 1) // it would be alone in its queue
		r.addExecuting(1)
		r.addSeats(seats)
		return r, false
	}
	if s.queuing.DesiredNumQueues == 0 && s.directSeats > 0 && s.seats+s.directSeats+seats > s.dispatching.ConcurrencyLimit {
		// The queues were removed while direct requests executed. Without queues, inner
		// admits a request that finds no seats if it knows of no other request.
		s.mu.Unlock()
		metrics.AddReject(ctx, s.name, schema, "concurrency-limit")
		return nil, false
	}
	if s.entering == 0 && s.waiting == 0 {
		s.maxWidth = 0
	}
	s.entering++
	s.maxWidth = max(s.maxWidth, seats)
	outdated := s.configuring || s.innerLimit != s.innerLimitLocked()
	s.mu.Unlock()
	if outdated {
		s.configureInner()
	}
	r, idle := s.inner.StartRequest(ctx, width, hash, flow, schema, descr1, descr2, note)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entering--
	// The result of r.Finish, which ignores direct requests, is a hint; callers check IsIdle.
	return r, idle && s.idleLocked()
}

// hasRoomLocked reports whether a request may be dispatched directly. While no request
// waits or enters, inner occupies no further seats.
func (s *queueSet) hasRoomLocked(seats int) bool {
	return s.queuing.DesiredNumQueues > 0 && s.entering == 0 && s.waiting == 0 &&
		s.seats+s.directSeats+seats <= s.dispatching.ConcurrencyLimit
}

// innerLimitLocked returns the number of seats that inner may occupy. It is zero if a
// request would find fewer than it needs: inner admits a request wider than its limit when
// it knows of no other request.
func (s *queueSet) innerLimitLocked() int {
	left := max(0, s.dispatching.ConcurrencyLimit-s.directSeats)
	if s.directSeats > 0 && left < s.maxWidth {
		return 0
	}
	return left
}

// configureInner updates the concurrency limit of inner.
func (s *queueSet) configureInner() {
	s.configMu.Lock()
	defer s.configMu.Unlock()
	s.mu.Lock()
	q, d := s.queuing, s.dispatching
	d.ConcurrencyLimit = s.innerLimitLocked()
	s.configuring = s.innerLimit != d.ConcurrencyLimit
	outdated := s.configuring
	s.mu.Unlock()
	if !outdated {
		return
	}
	change, err := s.inner.BeginConfigChange(q)
	if err == nil {
		change.Complete(d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configuring = false
	if err != nil { // unexpected: the same configuration was accepted before
		klog.ErrorS(err, "priority and fairness: cannot configure the queues", "priorityLevel", s.name)
		return
	}
	s.innerLimit = d.ConcurrencyLimit
}

// Dump implements fairqueuing.QueueSet. It shows direct requests as those of a queue set
// without queues.
func (s *queueSet) Dump(details bool) debug.QueueSetDump {
	dump := s.inner.Dump(details)
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

package fairness

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol/debug"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// directRequest is a request that was dispatched directly.
type directRequest struct {
	set            *queueSet
	ctx            context.Context
	width          flowcontrolrequest.WorkEstimate
	flow, schema   string
	descr1         any
	descr2         any
	began          time.Time
	previous, next *directRequest // guarded by the set's mu
}

func (s *queueSet) dispatchLocked(ctx context.Context, width *flowcontrolrequest.WorkEstimate, flow, schema string, descr1, descr2 any) *directRequest {
	r := &directRequest{set: s, ctx: ctx, width: *width, flow: flow, schema: schema, descr1: descr1, descr2: descr2, began: s.clock.Now()}
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

// addSeatsLocked occupies seats for direct requests, or releases them if n is negative.
func (s *queueSet) addSeatsLocked(n int) {
	s.directSeats += n
	s.demandGauge.Set(s.demand + float64(s.directSeats))
}

// addExecuting adds n to the metrics of executing requests.
func (r *directRequest) addExecuting(n int) {
	metrics.AddRequestsExecuting(r.ctx, r.set.name, r.schema, n)
	r.set.requestsGauge.Add(float64(n))
}

// addSeats adds n to the metrics of occupied seats.
func (r *directRequest) addSeats(n int) {
	metrics.AddSeatConcurrencyInUse(r.set.name, r.schema, n)
	r.set.seatsGauge.Add(float64(n))
}

// Finish implements fairqueuing.Request.
func (r *directRequest) Finish(execute func()) (idle bool) {
	defer func() { idle = r.finish() }() // also if it panics
	execute()
	return false
}

func (r *directRequest) finish() (idle bool) {
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
	r.addExecuting(-1)
	if r.width.AdditionalLatency > 0 {
		// The seats of a write stay occupied while its event is sent to watches.
		s.clock.EventAfterDuration(func(time.Time) { r.release() }, r.width.AdditionalLatency)
	} else {
		r.release()
	}
	return idle
}

// release releases the seats of the request.
func (r *directRequest) release() {
	s, seats := r.set, r.width.MaxSeats()
	r.addSeats(-seats)
	s.mu.Lock()
	s.addSeatsLocked(-seats)
	innerNeeds := s.entering > 0 || s.waiting > 0 || s.queuing.DesiredNumQueues <= 0
	s.mu.Unlock()
	if innerNeeds {
		s.configureInner()
	}
}

func (r *directRequest) dump(details bool) debug.RequestDump {
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

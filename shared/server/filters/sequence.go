package filters

import (
	"context"
	"net/http"
	"slices"
)

// middleware puts a filter in front of a handler.
type middleware func(next http.Handler) http.Handler

// step is a filter that has finished when the next one begins. It returns the writer and
// the request for the next filter, or a nil request if it has answered.
type step func(s *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request)

// filter is one filter of the chain.
type filter struct {
	wrap middleware
	// step does the same as wrap. It is nil for a filter that acts after the next handler
	// has returned.
	step step
}

// around returns a filter that acts before and after the next handler.
func around(m middleware) filter { return filter{wrap: m} }

// before returns a filter that acts only before the next handler. It must call the next
// handler in the same goroutine, at most once, with a context derived from the request's.
func before(m middleware) filter { return filter{wrap: m, step: asStep(m)} }

// annotate returns a filter that never answers.
func annotate(f func(*requestState, *http.Request) *http.Request) filter {
	return filter{
		wrap: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if s, ok := stateFrom(req.Context()); ok {
					req = f(s, req)
				}
				next.ServeHTTP(w, req)
			})
		},
		step: func(s *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
			return w, f(s, req)
		},
	}
}

// compose puts filters in front of next, the first one outermost. Adjacent filters that
// have a step become one sequence, unless nested is true.
func compose(next http.Handler, nested bool, filters ...filter) http.Handler {
	var steps []step // directly in front of next, last first
	for _, f := range slices.Backward(filters) {
		if f.step != nil && !nested {
			steps = append(steps, f.step)
			continue
		}
		next, steps = f.wrap(newSequence(next, steps)), nil
	}
	return newSequence(next, steps)
}

// newSequence runs steps, the last of which comes first, before next.
func newSequence(next http.Handler, steps []step) http.Handler {
	if len(steps) == 0 {
		return next
	}
	slices.Reverse(steps)
	return &sequence{steps, next}
}

// sequence calls its steps one after another, and then the next handler. Nested filters
// would keep their stack frames for as long as a watch lasts, and copy them whenever the
// stack grows.
//
// While requests are traced, filters are nested: the span of each filter covers the
// filters behind it.
//
// Authentication and authorization record their metrics when they return. In a sequence
// that is before the request is handled, not after it; the values are the same.
type sequence struct {
	steps []step
	next  http.Handler
}

// ServeHTTP implements http.Handler.
func (q *sequence) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if w, req = q.run(w, req); req != nil {
		q.next.ServeHTTP(w, req)
	}
}

// run is separate from ServeHTTP, whose stack frame stays while next runs.
func (q *sequence) run(w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	s, ok := stateFrom(req.Context())
	if !ok {
		s = &requestState{}
		req = req.WithContext(withState(req.Context(), s))
	}
	for _, step := range q.steps {
		if w, req = step(s, w, req); req == nil {
			return nil, nil
		}
	}
	return w, req
}

// asStep calls a middleware with a next handler that only records its arguments.
func asStep(m middleware) step {
	handler := m(recordNext{})
	return func(s *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
		handler.ServeHTTP(w, req)
		w, req = s.nextWriter, s.nextRequest
		s.nextWriter, s.nextRequest = nil, nil
		return w, req
	}
}

// recordNext records the writer and the request that a middleware passes on.
type recordNext struct{}

// ServeHTTP implements http.Handler.
func (recordNext) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if s, ok := stateFrom(req.Context()); ok {
		s.nextWriter, s.nextRequest = w, req
	}
}

// requestState is the state that filters share about a request. The goroutine that
// handles the request owns it.
type requestState struct {
	// timing is the filter whose latency is being measured.
	timing timing
	// nextWriter and nextRequest are set by recordNext for asStep.
	nextWriter  http.ResponseWriter
	nextRequest *http.Request
	// unverified is set while metrics must not be labelled with the request's resource.
	unverified unverifiedInfo
}

type stateKey struct{}

func withState(ctx context.Context, s *requestState) context.Context {
	return context.WithValue(ctx, stateKey{}, s)
}

func stateFrom(ctx context.Context) (*requestState, bool) {
	s, ok := ctx.Value(stateKey{}).(*requestState)
	return s, ok
}

package filters

import (
	"context"
	"net/http"
	"slices"
)

// A line runs filters one after another instead of one inside the other. It is for
// filters that have nothing left to do once they have passed a request on, which is
// most of them: what they keep on the stack meanwhile is kept for the whole of a watch,
// and copied whenever the stack grows. Filters with something to do at the end (wait
// groups, audit, recovery, fairness) stay around what they filter.
//
// With traces every filter that is timed has a span around what it filters, and they are
// all nested; see [compose].
//
// Authentication and authorization record their metrics when they return. In a line
// that is before the request is handled instead of after it, with the same values.
type line struct {
	links []link
	next  http.Handler
}

// link is a step of a line. It returns what it passes on, or a nil request if it has
// answered.
type link func(s *step, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request)

// ServeHTTP implements http.Handler.
func (l *line) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if w, req = l.pass(w, req); req != nil {
		l.next.ServeHTTP(w, req)
	}
}

// pass is apart from ServeHTTP, whose frame stays on the stack.
func (l *line) pass(w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	s, ok := req.Context().Value(stepKey{}).(*step)
	if !ok {
		s = &step{}
		req = req.WithContext(context.WithValue(req.Context(), stepKey{}, s))
	}
	for _, link := range l.links {
		if w, req = link(s, w, req); req == nil {
			return nil, nil
		}
	}
	return w, req
}

// passage takes what the last filter of a line has passed on.
type passage struct{}

// ServeHTTP implements http.Handler.
func (passage) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if s, ok := req.Context().Value(stepKey{}).(*step); ok {
		s.w, s.req = w, req
	}
}

// through makes a link of a filter. The filter must pass a request on in the goroutine
// that called it, at most once, with a context made from the request's, and do nothing
// afterwards that has to wait for the answer.
func through(filter filter) link {
	handler := filter(passage{})
	return func(s *step, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
		handler.ServeHTTP(w, req)
		w, req = s.w, s.req
		s.w, s.req = nil, nil
		return w, req
	}
}

// filter makes a handler that passes requests on to another one, or does not.
type filter func(next http.Handler) http.Handler

// part is a piece of the chain: a filter, and the same as a link where it has nothing
// to do afterwards.
type part struct {
	filter filter
	link   link
}

// around is a part with something to do afterwards.
func around(f filter) part { return part{filter: f} }

// before is a part that is over when it has passed a request on.
func before(f filter) part { return part{filter: f, link: through(f)} }

// compose puts parts in front of next, the first one outermost. With nested, all are
// one inside the other.
func compose(next http.Handler, nested bool, parts ...part) http.Handler {
	var links []link // those in front of next, last first
	for _, p := range slices.Backward(parts) {
		if p.link != nil && !nested {
			links = append(links, p.link)
			continue
		}
		next, links = p.filter(inLine(next, links)), nil
	}
	return inLine(next, links)
}

// inLine puts links, of which the last comes first, in front of next.
func inLine(next http.Handler, links []link) http.Handler {
	if len(links) == 0 {
		return next
	}
	slices.Reverse(links)
	return &line{links, next}
}

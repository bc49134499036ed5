package filters

import (
	"context"
	"hash/maphash"
	"net/http"
	"sync"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
)

// Metrics of requests that are refused before anybody has looked for what they name, or
// that end too late, are labelled with the resource. Anybody can name any, and a series is
// never forgotten; so they are labelled only with resources for which a request has been
// allowed before.

const (
	// maxNamed bounds the resources that are known to be named rightly, and maxName the
	// bytes of one of them: group, version, resource and subresource.
	maxNamed = 16 << 10
	maxName  = 512
)

// named are the resources of requests that were allowed. Of each only a hash is held.
type named struct {
	seed  maphash.Seed
	limit int

	mu    sync.RWMutex
	known map[uint64]struct{} // guarded by mu
}

func newNamed(limit int) *named {
	return &named{seed: maphash.MakeSeed(), limit: limit, known: map[uint64]struct{}{}}
}

// resources are those of all tiers of the process, as are its metrics.
var resources = newNamed(maxNamed)

func (n *named) key(i *apirequest.RequestInfo) uint64 {
	return maphash.Comparable(n.seed, [...]string{i.APIGroup, i.APIVersion, i.Resource, i.Subresource})
}

func (n *named) knows(i *apirequest.RequestInfo) bool {
	if !i.IsResourceRequest {
		return false
	}
	key := n.key(i)
	n.mu.RLock()
	defer n.mu.RUnlock()
	_, ok := n.known[key]
	return ok
}

// learn is called for a request that is allowed.
func (n *named) learn(i *apirequest.RequestInfo) {
	if !i.IsResourceRequest || len(i.APIGroup)+len(i.APIVersion)+len(i.Resource)+len(i.Subresource) > maxName {
		return
	}
	key := n.key(i)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.known) < n.limit {
		n.known[key] = struct{}{}
	}
}

// Labels returns info as metrics may be labelled with it: without the resource, or the
// path, if no request for it has been allowed yet.
func Labels(info *apirequest.RequestInfo) *apirequest.RequestInfo {
	if info == nil || resources.knows(info) {
		return info
	}
	blank := *info
	blankNames(&blank)
	return &blank
}

func blankNames(i *apirequest.RequestInfo) {
	i.APIGroup, i.APIVersion, i.Resource, i.Subresource, i.Path = "", "", "", "", ""
}

// labelled is a resolver for who only counts requests.
type labelled struct{ apirequest.RequestInfoResolver }

// NewRequestInfo implements apirequest.RequestInfoResolver.
func (l labelled) NewRequestInfo(req *http.Request) (*apirequest.RequestInfo, error) {
	info, err := l.RequestInfoResolver.NewRequestInfo(req)
	return Labels(info), err
}

// stranger is the request info of a request for what may not be named yet: a copy, for
// those who may refuse it, and the original.
type stranger struct{ copy, original *apirequest.RequestInfo }

// linked is a part that never answers.
func linked(l func(*step, *http.Request) *http.Request) part {
	return part{
		filter: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if s, ok := req.Context().Value(stepKey{}).(*step); ok {
					req = l(s, req)
				}
				next.ServeHTTP(w, req)
			})
		},
		link: func(s *step, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
			return w, l(s, req)
		},
	}
}

// mayBeRefused comes before filters that count a request they refuse.
func mayBeRefused() part {
	return linked(func(s *step, req *http.Request) *http.Request {
		s.stranger = stranger{}
		info, ok := apirequest.RequestInfoFrom(req.Context())
		if !ok || resources.knows(info) {
			return req
		}
		own := *info
		s.stranger = stranger{&own, info}
		return req.WithContext(apirequest.WithRequestInfo(req.Context(), &own))
	})
}

// wasAllowed comes behind authorization.
func wasAllowed() part {
	return linked(func(s *step, req *http.Request) *http.Request {
		if s.stranger.original != nil {
			resources.learn(s.stranger.original)
			s.stranger = stranger{}
		}
		return req
	})
}

// nameless is priority and fairness that forgets what a request has named that it refuses,
// before k8s.io/apiserver counts it.
type nameless struct{ utilflowcontrol.Interface }

// Handle implements utilflowcontrol.Interface.
func (n nameless) Handle(ctx context.Context, digest utilflowcontrol.RequestDigest,
	note func(*flowcontrol.FlowSchema, *flowcontrol.PriorityLevelConfiguration, string),
	estimate func() flowcontrolrequest.WorkEstimate, queued fq.QueueNoteFn, execute func(),
) {
	digest.User = asPrivileged(digest.User)
	s, ok := ctx.Value(stepKey{}).(*step)
	if !ok || s.stranger.copy != digest.RequestInfo {
		n.Interface.Handle(ctx, digest, note, estimate, queued, execute)
		return
	}
	refused := true
	n.Interface.Handle(ctx, digest, note, estimate, queued, func() {
		refused = false
		execute()
	})
	if refused {
		blankNames(digest.RequestInfo)
	}
}

// namelessInFlight is WithMaxInFlightLimit for requests whose names are forgotten until
// they have been let in.
func namelessInFlight(next http.Handler, g *genericapiserver.Config) http.Handler {
	named := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s, ok := req.Context().Value(stepKey{}).(*step); ok && s.stranger.copy != nil {
			*s.stranger.copy = *s.stranger.original
		}
		next.ServeHTTP(w, req)
	})
	limited := exceptTiers(genericfilters.WithMaxInFlightLimit(named, g.MaxRequestsInFlight, g.MaxMutatingRequestsInFlight, g.LongRunningFunc), named)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s, ok := req.Context().Value(stepKey{}).(*step)
		// What runs long is not limited, and is known by what it names.
		if ok && s.stranger.copy != nil && !g.LongRunningFunc(req, s.stranger.copy) {
			blankNames(s.stranger.copy)
		}
		limited.ServeHTTP(w, req)
	})
}

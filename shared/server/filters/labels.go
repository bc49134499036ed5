package filters

import (
	"context"
	"hash/maphash"
	"net/http"
	"sync"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Some metrics are labelled with the resource of requests that were refused before
// authorization, or that timed out. Clients can name any resource, and a series is never
// removed. So these metrics are labelled only with verified resources: those for which a
// request has been authorized before.

const (
	// maxVerified bounds the number of verified resources.
	maxVerified = 16 << 10
	// maxVerifiedBytes bounds the length of group, version, resource and subresource of a
	// verified resource together.
	maxVerifiedBytes = 512
)

// resourceSet is a set of resources. It holds only their hashes.
type resourceSet struct {
	seed  maphash.Seed
	limit int

	mu     sync.RWMutex
	hashes map[uint64]struct{} // guarded by mu
}

func newResourceSet(limit int) *resourceSet {
	return &resourceSet{seed: maphash.MakeSeed(), limit: limit, hashes: map[uint64]struct{}{}}
}

// verified holds the verified resources of all tiers in the process, which share its
// metrics.
var verified = newResourceSet(maxVerified)

func (r *resourceSet) hash(i *apirequest.RequestInfo) uint64 {
	return maphash.Comparable(r.seed, [...]string{i.APIGroup, i.APIVersion, i.Resource, i.Subresource})
}

func (r *resourceSet) has(i *apirequest.RequestInfo) bool {
	if !i.IsResourceRequest {
		return false
	}
	hash := r.hash(i)
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.hashes[hash]
	return ok
}

func (r *resourceSet) add(i *apirequest.RequestInfo) {
	if !i.IsResourceRequest || len(i.APIGroup)+len(i.APIVersion)+len(i.Resource)+len(i.Subresource) > maxVerifiedBytes {
		return
	}
	hash := r.hash(i)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.hashes) < r.limit {
		r.hashes[hash] = struct{}{}
	}
}

// MetricsInfo returns the request info that metrics may be labelled with: info itself if
// its resource is verified, and otherwise a copy without resource and path.
func MetricsInfo(info *apirequest.RequestInfo) *apirequest.RequestInfo {
	if info == nil || verified.has(info) {
		return info
	}
	redacted := *info
	redact(&redacted)
	return &redacted
}

func redact(i *apirequest.RequestInfo) {
	i.APIGroup, i.APIVersion, i.Resource, i.Subresource, i.Path = "", "", "", "", ""
}

// metricsResolver resolves request infos for metrics.
type metricsResolver struct{ apirequest.RequestInfoResolver }

// NewRequestInfo implements apirequest.RequestInfoResolver.
func (r metricsResolver) NewRequestInfo(req *http.Request) (*apirequest.RequestInfo, error) {
	info, err := r.RequestInfoResolver.NewRequestInfo(req)
	return MetricsInfo(info), err
}

// unverifiedInfo is the request info of a request whose resource is not verified: a copy
// that a filter may redact before it refuses the request, and the original.
type unverifiedInfo struct{ copy, original *apirequest.RequestInfo }

// copyUnverified goes in front of filters that count the requests they refuse.
func copyUnverified() filter {
	return annotate(func(s *requestState, req *http.Request) *http.Request {
		s.unverified = unverifiedInfo{}
		info, ok := apirequest.RequestInfoFrom(req.Context())
		if !ok || verified.has(info) {
			return req
		}
		own := *info
		s.unverified = unverifiedInfo{&own, info}
		return req.WithContext(apirequest.WithRequestInfo(req.Context(), &own))
	})
}

// markVerified goes behind authorization.
func markVerified() filter {
	return annotate(func(s *requestState, req *http.Request) *http.Request {
		if s.unverified.original != nil {
			verified.add(s.unverified.original)
			s.unverified = unverifiedInfo{}
		}
		return req
	})
}

// redactingFlowControl redacts the request info of unverified requests that priority and
// fairness refuses, before k8s.io/apiserver counts them.
type redactingFlowControl struct{ utilflowcontrol.Interface }

// Handle implements utilflowcontrol.Interface.
func (r redactingFlowControl) Handle(ctx context.Context, digest utilflowcontrol.RequestDigest,
	note func(*flowcontrol.FlowSchema, *flowcontrol.PriorityLevelConfiguration, string),
	estimate func() flowcontrolrequest.WorkEstimate, queued fq.QueueNoteFn, execute func(),
) {
	digest.User = exemptTier(digest.User)
	s, ok := stateFrom(ctx)
	if !ok || s.unverified.copy != digest.RequestInfo {
		r.Interface.Handle(ctx, digest, note, estimate, queued, execute)
		return
	}
	refused := true
	r.Interface.Handle(ctx, digest, note, estimate, queued, func() {
		refused = false
		execute()
	})
	if refused {
		redact(digest.RequestInfo)
	}
}

// withMaxInFlight is WithMaxInFlightLimit of k8s.io/apiserver. It redacts the request info
// of unverified requests until they are admitted.
func withMaxInFlight(next http.Handler, g *genericapiserver.Config) http.Handler {
	restored := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s, ok := stateFrom(req.Context()); ok && s.unverified.copy != nil {
			*s.unverified.copy = *s.unverified.original
		}
		next.ServeHTTP(w, req)
	})
	limited := exceptTiers(genericfilters.WithMaxInFlightLimit(restored, g.MaxRequestsInFlight, g.MaxMutatingRequestsInFlight, g.LongRunningFunc), restored)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s, ok := stateFrom(req.Context())
		// Long-running requests are not limited, and are recognized by their resource.
		if ok && s.unverified.copy != nil && !g.LongRunningFunc(req, s.unverified.copy) {
			redact(s.unverified.copy)
		}
		limited.ServeHTTP(w, req)
	})
}

package discovery

import (
	"context"
	"errors"
	"net/http"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"triune.dev/services/aggregator/internal/remote"
	"triune.dev/shared/transport/documents"
)

// remotePoller polls an extension server.
type remotePoller struct {
	cancel context.CancelFunc
	wake   chan struct{}

	// Guarded by Manager.mu.
	backends []*remote.Backend
	versions map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery
	failed   map[schema.GroupVersion]bool
	polled   bool

	// Owned by the poller's goroutine.
	tag    documents.Tag
	groups []apidiscoveryv2.APIGroupDiscovery // the document with this tag
}

func (f *remotePoller) pollSoon() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// pollRemote polls an extension server until the context ends.
func (m *Manager) pollRemote(ctx context.Context, f *remotePoller) {
	failures := 0
	for {
		if m.poll(ctx, f) {
			failures = 0
		} else {
			failures++
		}
		pause := m.pace.Remote
		if failures > 0 {
			pause = min(pause, m.pace.Retry<<min(failures-1, 10))
		}
		// pollSoon cannot make it poll more often than this.
		if !sleep(ctx, min(pause, m.pace.Retry), nil) || !sleep(ctx, pause-min(pause, m.pace.Retry), f.wake) {
			return
		}
	}
}

// poll polls once and reports whether the server answered for all of its group-versions.
func (m *Manager) poll(ctx context.Context, f *remotePoller) bool {
	m.mu.Lock()
	backends := f.backends
	m.mu.Unlock()
	if len(backends) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, m.pace.Timeout)
	defer cancel()

	known := make(map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery, len(backends))
	failed := map[schema.GroupVersion]bool{}
	groups, err := f.aggregated(ctx, backends[0])
	switch {
	case err == nil:
		for _, group := range groups {
			for _, v := range group.Versions {
				v.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
				known[schema.GroupVersion{Group: group.Name, Version: v.Version}] = v
			}
		}
	case isUnreachable(err):
		for _, backend := range backends {
			failed[groupVersion(backend)] = true
		}
	}
	if !isUnreachable(err) {
		for _, backend := range backends {
			gv := groupVersion(backend)
			if _, ok := known[gv]; ok || (err == nil && gv.Group != "") {
				continue
			}
			if v, err := legacyVersion(ctx, backend); err != nil {
				klog.FromContext(ctx).V(2).Info("discovery of an apiservice is not available", "apiService", backend.APIService().Name, "err", err)
				failed[gv] = true
			} else {
				known[gv] = v
			}
		}
	} else if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		klog.FromContext(ctx).V(2).Info("discovery of an apiservice is not available", "apiService", backends[0].APIService().Name, "err", err)
	}
	m.setResult(f, known, failed)
	return len(failed) == 0
}

// setResult stores the result of a poll. Failed group-versions keep their previous discovery.
func (m *Manager) setResult(f *remotePoller, known map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery, failed map[schema.GroupVersion]bool) {
	m.mu.Lock()
	for gv := range failed {
		if before, ok := f.versions[gv]; ok {
			known[gv] = before
		}
	}
	f.versions, f.failed, f.polled = known, failed, true
	m.mu.Unlock()
	m.markDirty()
}

// aggregated returns the document of the whole server.
func (f *remotePoller) aggregated(ctx context.Context, from documents.Getter) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	answer, err := documents.Document(ctx, from, documents.Query{Path: "/apis", Accept: acceptAggregated, Known: f.tag})
	if err != nil {
		return nil, err
	}
	if !answer.Modified {
		f.tag = answer.Tag
		return f.groups, nil
	}
	groups, err := parseAggregated(answer.ContentType, answer.Body)
	if err != nil {
		return nil, err
	}
	f.tag, f.groups = answer.Tag, groups
	return groups, nil
}

// legacyVersion returns the resources of a group-version from a server without aggregated
// discovery.
func legacyVersion(ctx context.Context, backend *remote.Backend) (apidiscoveryv2.APIVersionDiscovery, error) {
	gv := groupVersion(backend)
	answer, err := documents.Document(ctx, backend, documents.Query{Path: groupVersionPath(gv), Accept: "application/json"})
	if err != nil {
		return apidiscoveryv2.APIVersionDiscovery{}, err
	}
	v, err := parseLegacy(gv.Version, answer.Body)
	v.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
	return v, err
}

// isUnreachable reports whether err means that the server is down, and not only that it lacks
// aggregated discovery.
func isUnreachable(err error) bool {
	if err == nil || errors.Is(err, documents.ErrNotFound) || errors.Is(err, errNotAggregated) {
		return false
	}
	var status *documents.StatusError
	return !errors.As(err, &status) || status.Code == http.StatusServiceUnavailable
}

func groupVersion(backend *remote.Backend) schema.GroupVersion {
	spec := backend.APIService().Spec
	return schema.GroupVersion{Group: spec.Group, Version: spec.Version}
}

// sleep waits for the pause or a wake-up, and reports whether the context is still active.
func sleep(ctx context.Context, pause time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-wake:
	}
	return true
}

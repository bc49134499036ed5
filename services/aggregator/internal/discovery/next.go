package discovery

import (
	"context"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"triune.dev/shared/transport/documents"
)

// nextTier is the discovery of the next tier. Manager.mu guards its fields.
type nextTier struct {
	apis, api []apidiscoveryv2.APIGroupDiscovery
	// answered is the time of the last answer; zero if there was none.
	answered time.Time
	// down is set once there was no answer for longer than Pace.Grace.
	down bool
}

// nextPoller polls the next tier. A single goroutine owns its fields.
type nextPoller struct {
	m          *Manager
	apis       documents.Tag
	api        documents.Tag
	apiAt      time.Time
	eagerPolls int
}

// maxEagerPolls is the number of polls at the interval Pace.Eager after a hint.
const maxEagerPolls = 12

func (m *Manager) pollNext(ctx context.Context) {
	p := &nextPoller{m: m}
	answeredOnce := false
	for {
		answered := p.poll(ctx) || answeredOnce
		pause := m.pace.Next
		if p.eagerPolls > 0 || !answered {
			p.eagerPolls = max(0, p.eagerPolls-1)
			pause = m.pace.Eager // clients wait for the first answer
		}
		answeredOnce = answered
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-m.pollNow:
			p.eagerPolls = maxEagerPolls
		case done := <-m.waiters:
			p.pollFor(ctx, done)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// waitTimeout bounds how long a discovery request waits for the next tier. After it, the current
// document is served.
const waitTimeout = 250 * time.Millisecond

// waitCurrent waits until the documents are at least as new as the call: a client that has seen
// its CRD established requests discovery next.
func (m *Manager) waitCurrent(ctx context.Context) {
	m.mu.Lock()
	down := m.next.down || m.next.answered.IsZero()
	m.mu.Unlock()
	if down {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	done := make(chan struct{})
	select {
	case m.waiters <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// pollFor polls the next tier for all waiters and merges the result.
func (p *nextPoller) pollFor(ctx context.Context, first chan<- struct{}) {
	waiting := []chan<- struct{}{first}
	for more := true; more; {
		select {
		case done := <-p.m.waiters:
			waiting = append(waiting, done)
		default:
			more = false
		}
	}
	if p.poll(ctx) {
		if err := p.m.merge(); err != nil {
			klog.FromContext(ctx).Error(err, "discovery could not be merged")
		}
	}
	for _, done := range waiting {
		close(done)
	}
}

// poll polls once and reports whether the next tier answered.
func (p *nextPoller) poll(ctx context.Context) bool {
	m := p.m
	ctx, cancel := context.WithTimeout(ctx, m.pace.Timeout)
	defer cancel()
	apis, err := p.document(ctx, "/apis", &p.apis)
	var api *[]apidiscoveryv2.APIGroupDiscovery
	// The legacy group does not change during the life of the next tier.
	if err == nil && (p.apiAt.IsZero() || time.Since(p.apiAt) > 10*m.pace.Next) {
		if api, err = p.document(ctx, "/api", &p.api); err == nil {
			p.apiAt = time.Now()
		}
	}
	if err != nil {
		p.apiAt = time.Time{}
		p.failed(ctx, err)
		return false
	}

	m.mu.Lock()
	changed := apis != nil || api != nil || m.next.down || m.next.answered.IsZero()
	if apis != nil {
		m.next.apis = *apis
	}
	if api != nil {
		m.next.api = *api
	}
	if m.next.down {
		klog.FromContext(ctx).Info("the next tier answers discovery again")
	}
	m.next.answered, m.next.down = time.Now(), false
	served := groupVersions(m.next.api, m.next.apis)
	m.mu.Unlock()
	if changed {
		m.markDirty()
		if m.onNext != nil {
			m.onNext(served)
		}
	}
	return true
}

func (p *nextPoller) failed(ctx context.Context, err error) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next.down || time.Since(m.next.answered) < m.pace.Grace {
		return
	}
	if m.next.answered.IsZero() {
		// Tiers may start in any order.
		klog.FromContext(ctx).Info("waiting for the next tier to answer discovery", "reason", err.Error())
	} else {
		klog.FromContext(ctx).Error(err, "the next tier does not answer discovery")
	}
	m.next.down = true
	m.markDirty()
}

// document returns the groups at path, or nil if they have not changed.
func (p *nextPoller) document(ctx context.Context, path string, tag *documents.Tag) (*[]apidiscoveryv2.APIGroupDiscovery, error) {
	answer, err := documents.Document(ctx, p.m.nextTier, documents.Query{Path: path, Accept: acceptAggregated, Known: *tag})
	if err != nil {
		return nil, err
	}
	if !answer.Modified {
		*tag = answer.Tag
		return nil, nil
	}
	groups, err := parseAggregated(answer.ContentType, answer.Body)
	if err != nil {
		return nil, err
	}
	*tag = answer.Tag
	return &groups, nil
}

// groupVersions lists the group-versions of the documents, except Stale ones.
func groupVersions(merged ...[]apidiscoveryv2.APIGroupDiscovery) []schema.GroupVersion {
	var served []schema.GroupVersion
	for _, groups := range merged {
		for _, group := range groups {
			for _, v := range group.Versions {
				if v.Freshness != apidiscoveryv2.DiscoveryFreshnessStale {
					served = append(served, schema.GroupVersion{Group: group.Name, Version: v.Version})
				}
			}
		}
	}
	return served
}

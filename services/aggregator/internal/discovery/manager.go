package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"triune.dev/services/aggregator/internal/apiservices"
	"triune.dev/services/aggregator/internal/remote"
	"triune.dev/shared/transport/documents"
)

// Pace configures how often servers are polled. Zero fields select the defaults.
type Pace struct {
	// Next is the interval between two polls of the next tier (1 s).
	Next time.Duration
	// Eager is that interval after a hint of a change (100 ms).
	Eager time.Duration
	// Grace is how long the next tier may fail before its group-versions are marked Stale
	// (2 s): a restart should not clear the discovery caches of clients.
	Grace time.Duration
	// Remote is the interval between two polls of an extension server (5 s).
	Remote time.Duration
	// Retry is the first pause after a failed poll of an extension server (500 ms). It doubles
	// up to Remote.
	Retry time.Duration
	// Timeout bounds a poll (5 s).
	Timeout time.Duration
}

// mergePause is the minimum time between two merges.
const mergePause = 50 * time.Millisecond

func (p Pace) withDefaults() Pace {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&p.Next, time.Second)
	set(&p.Eager, 100*time.Millisecond)
	set(&p.Grace, 2*time.Second)
	set(&p.Remote, 5*time.Second)
	set(&p.Retry, 500*time.Millisecond)
	set(&p.Timeout, 5*time.Second)
	return p
}

// Config configures a [Manager].
type Config struct {
	// Next reaches the next tier. Required.
	Next documents.Getter
	// Own is the group of this tier.
	Own apidiscoveryv2.APIGroupDiscovery
	// Priority returns the priority of a group-version without a remote APIService. Required.
	Priority func(schema.GroupVersion) Priority
	// OnNext, if set, is called with all group-versions of the next tier after each change. It
	// must not block.
	OnNext func([]schema.GroupVersion)
	Pace   Pace
}

// Manager polls all sources and serves the merged documents. Its handlers answer 503 until the
// documents are complete. Its methods are safe for concurrent use.
type Manager struct {
	nextTier documents.Getter
	own      apidiscoveryv2.APIGroupDiscovery
	priority func(schema.GroupVersion) Priority
	onNext   func([]schema.GroupVersion)
	pace     Pace

	pollNow chan struct{}
	dirty   chan struct{}
	// waiters are requests that wait for a poll of the next tier.
	waiters chan chan<- struct{}

	apis atomic.Pointer[document]
	api  atomic.Pointer[document]

	// merging is locked during a merge, so that an older result cannot replace a newer one.
	merging sync.Mutex

	mu            sync.Mutex
	snapshot      *apiservices.Snapshot
	next          nextTier
	ready         bool // Ready has returned nil
	remotePollers map[remote.Server]*remotePoller
}

// NewManager returns a manager without documents.
func NewManager(config Config) *Manager {
	return &Manager{
		nextTier:      config.Next,
		own:           config.Own,
		priority:      config.Priority,
		onNext:        config.OnNext,
		pace:          config.Pace.withDefaults(),
		pollNow:       make(chan struct{}, 1),
		dirty:         make(chan struct{}, 1),
		waiters:       make(chan chan<- struct{}),
		remotePollers: map[remote.Server]*remotePoller{},
	}
}

// SetSnapshot replaces the table of APIServices. It does not block.
func (m *Manager) SetSnapshot(snapshot *apiservices.Snapshot) {
	m.mu.Lock()
	m.snapshot = snapshot
	m.mu.Unlock()
	m.PollNextSoon()
	m.markDirty()
}

// PollNextSoon polls the next tier because a CRD or an APIService has changed. It does not block.
func (m *Manager) PollNextSoon() {
	select {
	case m.pollNow <- struct{}{}:
	default:
	}
}

// Recheck polls the server of an APIService after a request could not reach it. It does not
// block.
func (m *Manager) Recheck(apiService string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.remotePollers {
		for _, backend := range f.backends {
			if backend.APIService().Name == apiService {
				f.pollSoon()
				return
			}
		}
	}
}

// markDirty makes Run merge the documents again.
func (m *Manager) markDirty() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}

// Ready returns an error until the next tier has answered, all extension servers were polled,
// whether they answered or not, and the result is merged. Afterwards it always returns nil.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ready {
		return nil
	}
	var missing []string
	if m.next.answered.IsZero() {
		missing = append(missing, "the next tier")
	}
	for key, f := range m.remotePollers {
		if !f.polled {
			missing = append(missing, key.String())
		}
	}
	if m.snapshot == nil {
		missing = append(missing, "the apiservices")
	}
	if m.apis.Load() == nil && missing == nil {
		missing = append(missing, "the first merge")
	}
	if missing == nil {
		m.ready = true
		return nil
	}
	slices.Sort(missing)
	return errors.New("discovery is waiting for " + strings.Join(missing, ", "))
}

// Run polls all sources until the context ends, and waits for its goroutines.
func (m *Manager) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { m.pollNext(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.dirty:
		}
		m.reconcile(ctx, &running)
		if err := m.merge(); err != nil {
			klog.FromContext(ctx).Error(err, "discovery could not be merged")
		}
		// Changes come in bursts, and a merge takes a few milliseconds.
		if !sleep(ctx, mergePause, nil) {
			return
		}
	}
}

// reconcile starts and stops pollers, one per extension server of the table.
func (m *Manager) reconcile(ctx context.Context, running *sync.WaitGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.snapshot == nil {
		return
	}
	backends := m.snapshot.Backends()
	seen := make(map[remote.Server]bool, len(m.remotePollers))
	for _, backend := range backends {
		seen[backend.Server()] = true
	}
	for key, f := range m.remotePollers {
		if !seen[key] {
			f.cancel()
			delete(m.remotePollers, key)
			continue
		}
	}
	for key := range seen {
		mine := slices.DeleteFunc(slices.Clone(backends), func(b *remote.Backend) bool { return b.Server() != key })
		if f := m.remotePollers[key]; f != nil {
			if !slices.Equal(f.backends, mine) {
				f.backends = mine
				f.pollSoon()
			}
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		f := &remotePoller{cancel: cancel, wake: make(chan struct{}, 1), backends: mine}
		m.remotePollers[key] = f
		running.Go(func() { m.pollRemote(ctx, f) })
	}
}

// isIncompleteLocked reports whether a merged document would lack unknown group-versions: the
// APIServices have not been listed, or the next tier has never answered and no local APIService
// from an earlier process lists its group-versions.
func (m *Manager) isIncompleteLocked() bool {
	if m.snapshot == nil {
		return true
	}
	return m.next.answered.IsZero() && !slices.ContainsFunc(m.snapshot.All(), func(s *apiregistrationv1.APIService) bool {
		return s.Spec.Service == nil
	})
}

// merge merges the documents, unless they would be incomplete.
func (m *Manager) merge() error {
	m.merging.Lock()
	defer m.merging.Unlock()
	m.mu.Lock()
	if m.isIncompleteLocked() {
		m.mu.Unlock()
		m.apis.Store(nil)
		m.api.Store(nil)
		return nil
	}
	snapshot := m.snapshot
	sources := m.remoteSourcesLocked()
	common := Input{NextDown: m.next.down || m.next.answered.IsZero(), Priority: m.priorityOf(snapshot)}
	nextAPIs, nextAPI := m.next.apis, m.next.api
	m.mu.Unlock()

	apis, api := common, common
	apis.Own, apis.Next, api.Next = []apidiscoveryv2.APIGroupDiscovery{m.own}, nextAPIs, nextAPI
	for _, source := range sources {
		into := &apis.Remote
		if source.Group == "" {
			into = &api.Remote
		}
		*into = append(*into, source)
	}
	for _, apiService := range snapshot.All() {
		if apiService.Spec.Service != nil {
			continue
		}
		into := &apis.Expected
		if apiService.Spec.Group == "" {
			into = &api.Expected
		}
		*into = append(*into, schema.GroupVersion{Group: apiService.Spec.Group, Version: apiService.Spec.Version})
	}
	if err := storeIfChanged(&m.apis, Merge(apis)); err != nil {
		return fmt.Errorf("merge /apis: %w", err)
	}
	if err := storeIfChanged(&m.api, Merge(api)); err != nil {
		return fmt.Errorf("merge /api: %w", err)
	}
	return nil
}

// remoteSourcesLocked returns the sources of all remote APIServices.
func (m *Manager) remoteSourcesLocked() []Source {
	var sources []Source
	for _, f := range m.remotePollers {
		for _, backend := range f.backends {
			gv := groupVersion(backend)
			v, ok := f.versions[gv]
			if !ok {
				// The server does not answer or does not serve it.
				v = apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			}
			if f.failed[gv] || !f.polled {
				v.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			}
			sources = append(sources, Source{GroupVersion: gv, Discovery: v})
		}
	}
	slices.SortFunc(sources, func(a, b Source) int { return strings.Compare(a.String(), b.String()) })
	return sources
}

// priorityOf returns the priority of remote group-versions from their APIServices.
func (m *Manager) priorityOf(snapshot *apiservices.Snapshot) func(schema.GroupVersion) Priority {
	return func(gv schema.GroupVersion) Priority {
		if apiService := snapshot.APIService(gv); apiService != nil && apiService.Spec.Service != nil {
			return Priority{Group: int(apiService.Spec.GroupPriorityMinimum), Version: int(apiService.Spec.VersionPriority)}
		}
		return m.priority(gv)
	}
}

// storeIfChanged stores a document unless it equals the current one, whose encodings remain valid.
func storeIfChanged(at *atomic.Pointer[document], groups []apidiscoveryv2.APIGroupDiscovery) error {
	made, err := newDocument(groups)
	if err != nil {
		return err
	}
	if current := at.Load(); current == nil || current.etag != made.etag {
		at.Store(made)
	}
	return nil
}

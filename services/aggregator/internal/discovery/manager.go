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

// Pace says how often servers are asked. Zero fields take their defaults.
type Pace struct {
	// Next is the pause between two questions to the next tier (1 s).
	Next time.Duration
	// Hurry is that pause after a hint that something has changed (100 ms).
	Eager time.Duration
	// Grace is how long the next tier may be silent before what it serves is marked
	// Stale (2 s): a restart should not empty anybody's discovery cache.
	Grace time.Duration
	// Remote is the pause between two questions to an extension server (5 s).
	Remote time.Duration
	// Retry is the first pause after an extension server has failed; it doubles up
	// to Remote (500 ms).
	Retry time.Duration
	// Timeout bounds one question (5 s).
	Timeout time.Duration
}

// mergePause is the shortest time between two merges.
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

// Config is what a Manager is made of.
type Config struct {
	// Next asks the next tier. Required.
	Next documents.Getter
	// Own is this tier's own group.
	Own apidiscoveryv2.APIGroupDiscovery
	// Priority places group-versions that have no remote APIService. Required.
	Priority func(schema.GroupVersion) Priority
	// OnNext, if set, is called with all group-versions of the next tier whenever
	// it has changed. It must not block.
	OnNext func([]schema.GroupVersion)
	Pace   Pace
}

// Manager keeps the merged documents up to date and serves them. Its handlers may
// be used at once; they answer 503 until Ready.
type Manager struct {
	nextTier documents.Getter
	own      apidiscoveryv2.APIGroupDiscovery
	priority func(schema.GroupVersion) Priority
	onNext   func([]schema.GroupVersion)
	pace     Pace

	pollNow chan struct{}
	dirty   chan struct{}
	// waiting are requests that want to be told what is true now.
	waiters chan chan<- struct{}

	apis atomic.Pointer[document]
	api  atomic.Pointer[document]

	// merging is held while documents are merged, so that an older one cannot
	// replace a newer.
	merging sync.Mutex

	mu            sync.Mutex
	snapshot      *apiservices.Snapshot
	next          nextTier
	ready         bool // what Ready has found once
	remotePollers map[remote.Server]*remotePoller
}

// NewManager returns a manager that knows nothing yet.
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

// Swap takes over a new table of APIServices. It does not block.
func (m *Manager) SetSnapshot(snapshot *apiservices.Snapshot) {
	m.mu.Lock()
	m.snapshot = snapshot
	m.mu.Unlock()
	m.PollNextSoon()
	m.markDirty()
}

// Hint tells that the next tier probably has something new to say: a CRD or an
// APIService has changed. It does not block.
func (m *Manager) PollNextSoon() {
	select {
	case m.pollNow <- struct{}{}:
	default:
	}
}

// Recheck asks the server of an APIService soon: a request could not reach it. It
// does not block.
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

// touch has the documents merged again.
func (m *Manager) markDirty() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}

// Ready returns an error until there is a document that every source had its
// chance to be in; from then on it is nil. An extension server that is down does
// not hold it up, the next tier does.
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
	return errors.New("discovery waits for " + strings.Join(missing, ", "))
}

// Run follows all sources until the context ends, and returns when nobody asks
// anything any more.
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
		// Changes come in bursts, and a merge costs a few milliseconds.
		if !sleep(ctx, mergePause, nil) {
			return
		}
	}
}

// reconcile has one follower for each extension server of the table.
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

// unknownLocked reports whether a document of what is known would look complete and
// lack the rest: the APIServices have not been read, or the next tier has never answered
// and no APIService remembers what it serves from an earlier life of this process.
func (m *Manager) isIncompleteLocked() bool {
	if m.snapshot == nil {
		return true
	}
	return m.next.answered.IsZero() && !slices.ContainsFunc(m.snapshot.All(), func(s *apiregistrationv1.APIService) bool {
		return s.Spec.Service == nil
	})
}

// merge builds the documents from what is known now, if it is enough.
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

// remoteLocked lists what is known of every remote APIService.
func (m *Manager) remoteSourcesLocked() []Source {
	var sources []Source
	for _, f := range m.remotePollers {
		for _, backend := range f.backends {
			gv := groupVersion(backend)
			v, ok := f.versions[gv]
			if !ok {
				// The server did not answer, or does not have it.
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

// placeOf gives remote group-versions the priority their APIService asks for.
func (m *Manager) priorityOf(snapshot *apiservices.Snapshot) func(schema.GroupVersion) Priority {
	return func(gv schema.GroupVersion) Priority {
		if apiService := snapshot.APIService(gv); apiService != nil && apiService.Spec.Service != nil {
			return Priority{Group: int(apiService.Spec.GroupPriorityMinimum), Version: int(apiService.Spec.VersionPriority)}
		}
		return m.priority(gv)
	}
}

// replace publishes a document unless it says what the current one says, whose
// encoded forms are then worth keeping.
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

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"k8s.io/klog/v2"
)

// RelayConfig configures a Relay.
type RelayConfig struct {
	// Etcd is the etcd to watch, and to hold the election in.
	Etcd *clientv3.Client
	// Conn is a connection with the relay's credentials; see Connect. The caller closes it
	// after Run.
	Conn *nats.Conn
	// Routes maps keys to subjects. Tiers are those whose changes this relay publishes: all
	// that store their objects in this etcd.
	Routes *Routes
	Tiers  []Tier
	Stream StreamOptions
	// Identity names this process in the election.
	Identity string
	// StatePrefix is the prefix of the relay's own keys in etcd; empty means
	// DefaultStatePrefix. It must not be below the prefix of the routes. Relays that share an
	// etcd and publish to different streams need different prefixes.
	StatePrefix string
	// LeaseTTL is how long after the death of a relay its successor takes over, not counting
	// the candidate's polling interval; 0 means 5 s. etcd rounds it up to seconds.
	LeaseTTL time.Duration
	// RequestLimit is etcd's --max-request-bytes; 0 means DefaultRequestLimit.
	RequestLimit int
	// ProgressInterval is the longest silence on a stream; 0 means 1 s.
	ProgressInterval time.Duration
	// AckTimeout bounds the wait for an acknowledgement; 0 means 5 s.
	AckTimeout time.Duration
	// StreamPatience is how long a stream may lack a leader, or refuse valid messages, before
	// the relay recreates it, provided that NATS answers otherwise; 0 means 10 s. A replicated
	// stream that loses its leader needs up to 9 s to elect another.
	StreamPatience time.Duration
	// Registerer registers the metrics; nil means none.
	Registerer prometheus.Registerer
}

// DefaultRequestLimit is etcd's default for --max-request-bytes.
const DefaultRequestLimit = 1536 << 10

func (c RelayConfig) withDefaults() RelayConfig {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.LeaseTTL, 5*time.Second)
	set(&c.ProgressInterval, time.Second)
	set(&c.AckTimeout, 5*time.Second)
	set(&c.StreamPatience, 10*time.Second)
	if c.StatePrefix == "" {
		c.StatePrefix = DefaultStatePrefix
	}
	if c.RequestLimit == 0 {
		c.RequestLimit = DefaultRequestLimit
	}
	return c
}

// Relay publishes the changes of an etcd while it is elected.
type Relay struct {
	cfg     RelayConfig
	js      jetstream.JetStream
	metrics *relayMetrics
	hooks   relayHooks

	mu sync.Mutex
	// replaced holds the tiers whose streams tell a history that etcd no longer has, as found
	// since this relay was elected; guarded by mu.
	replaced map[Tier]bool
	status   RelayStatus // guarded by mu
}

// relayHooks let tests inject faults of processes and networks, and weaken the fence.
type relayHooks struct {
	// publish runs before each message is sent.
	publish func(*message)
	// open runs before each stream is opened, and guarded between a confirmed election and the
	// deletion of a stream.
	open    func(ctx context.Context)
	guarded func()
	// acknowledge may swallow an acknowledgement.
	acknowledge func(*nats.Msg) bool
	// fence replaces the headers that fence a message, and limits bounds the unacknowledged
	// messages.
	fence  func(f *feed, m *message) nats.Header
	limits *limits
	// killed makes Run end as a killed process does: it waits for nothing and keeps the lease.
	killed bool
}

// NewRelay returns a relay. It does nothing until Run.
func NewRelay(c RelayConfig) (*Relay, error) {
	c = c.withDefaults()
	js, err := jetstream.New(c.Conn)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	return &Relay{cfg: c, js: js, metrics: newRelayMetrics(c.Registerer), replaced: map[Tier]bool{}}, nil
}

// CheckMaxPayload returns an error if a message cannot carry the largest object together with
// its previous state. Call it while the connection is up.
func CheckMaxPayload(conn *nats.Conn, requestLimit int) error {
	need := int64(2*requestLimit + 64<<10)
	if have := conn.MaxPayload(); have < need {
		return fmt.Errorf("max_payload of NATS is %d bytes, but an etcd that accepts requests of %d bytes needs %d", have, requestLimit, need)
	}
	return nil
}

// Run campaigns, publishes while elected, and campaigns again, until the context ends. It then
// returns nil.
func (r *Relay) Run(ctx context.Context) error {
	pause, logged := backoff{}, ""
	for {
		err := r.lead(ctx, &pause)
		if ctx.Err() != nil {
			return nil
		}
		r.setProblem(err)
		if err != nil && err.Error() != logged {
			logged = err.Error()
			klog.FromContext(ctx).Error(err, "relay of the event log is not elected, events come from etcd if no other is")
		}
		if !pause.wait(ctx) {
			return nil
		}
	}
}

// waitForNATS waits for a connection to NATS. A relay without one must not be elected, because
// the other candidates would wait for it.
func (r *Relay) waitForNATS(ctx context.Context) error {
	changed := r.cfg.Conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer r.cfg.Conn.RemoveStatusListener(changed)
	for !r.cfg.Conn.IsConnected() {
		if r.cfg.Conn.IsClosed() {
			return nats.ErrConnectionClosed
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
	return nil
}

// lead runs one session in etcd: the campaign, and the terms while elected.
func (r *Relay) lead(ctx context.Context, pause *backoff) error {
	if err := r.waitForNATS(ctx); err != nil {
		return fmt.Errorf("wait for NATS: %w", err)
	}
	if err := CheckMaxPayload(r.cfg.Conn, r.cfg.RequestLimit); err != nil {
		return err
	}
	ttl := int((r.cfg.LeaseTTL + time.Second - 1) / time.Second)
	session, err := concurrency.NewSession(r.cfg.Etcd, concurrency.WithTTL(ttl), concurrency.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if r.hooks.killed {
		defer session.Orphan()
	} else {
		defer func() {
			// The context of the session may have ended. Revoke the lease all the same, or the
			// next relay waits for it to expire.
			session.Orphan()
			revoke, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = r.cfg.Etcd.Revoke(revoke, session.Lease())
		}()
	}
	elected := &election{etcd: r.cfg.Etcd, key: r.cfg.StatePrefix + "relay", identity: r.cfg.Identity, session: session}
	if err := elected.campaign(ctx); err != nil {
		return fmt.Errorf("campaign: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-session.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	defer watching.Wait()
	defer cancel()
	log := klog.FromContext(ctx)
	log.Info("elected relay of the event log", "identity", r.cfg.Identity)
	r.setElected(true)
	defer r.setElected(false)
	defer r.forgetReplaced()
	for ctx.Err() == nil {
		start := time.Now()
		err := r.serve(ctx, elected)
		if ctx.Err() != nil {
			break
		}
		r.metrics.restarts.Inc()
		if time.Since(start) > 10*time.Second {
			pause.reset()
		}
		if errors.Is(err, errDeposed) || !r.hasReplaced() && (errors.Is(err, errNoUsableStream) || !r.cfg.Conn.IsConnected()) {
			return fmt.Errorf("step down: %w", err)
		}
		log.Error(err, "relay of the event log starts again")
		pause.wait(ctx)
	}
	return nil
}

// errNoUsableStream means that the relay could not publish to any stream for a while. It steps
// down then, because NATS may refuse this process alone.
var errNoUsableStream = errors.New("no stream is usable")

// markReplaced records that the streams tell a history that etcd no longer has.
func (r *Relay) markReplaced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tier := range r.cfg.Tiers {
		r.replaced[tier] = true
	}
}

// forgetReplaced leaves the finding to the next relay, which may have recreated the streams by
// the time this one is elected again.
func (r *Relay) forgetReplaced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.replaced)
}

func (r *Relay) isReplaced(tier Tier) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replaced[tier]
}

// hasReplaced reports whether this relay knows of a replaced history, which other relays might
// not notice.
func (r *Relay) hasReplaced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.replaced) > 0
}

// errDeposed means that this relay is no longer elected.
var errDeposed = errors.New("no longer elected")

// epoch returns a number that no relay has had before: the revision of a write that only the
// elected relay can make.
func (r *Relay) epoch(ctx context.Context, e *election) (uint64, error) {
	resp, err := e.guard(ctx, clientv3.OpPut(r.cfg.StatePrefix+"epoch", r.cfg.Identity))
	if err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	return uint64(resp.Header.GetRevision()), nil
}

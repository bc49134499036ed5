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

// RelayConfig is what a Relay needs.
type RelayConfig struct {
	// Etcd is watched, and elects the relay.
	Etcd *clientv3.Client
	// Conn reaches NATS with the relay's credentials; see Connect. The caller
	// closes it after Run.
	Conn *nats.Conn
	// Routes says what goes where, and Tiers whose changes this relay
	// publishes: all that keep their objects in this etcd.
	Routes *Routes
	Tiers  []Tier
	Stream StreamOptions
	// Identity names this process among those that want to be the relay.
	Identity string
	// Keys is the prefix of the relay's own keys in etcd; empty means
	// DefaultKeys. It must not be below the routes' prefix. Relays that share
	// an etcd and feed different streams need different ones.
	Keys string
	// LeaseTTL is how long after the death of a relay another one takes over, but
	// for the second that it may take to notice; 0 means 5 s. etcd counts in
	// seconds.
	LeaseTTL time.Duration
	// RequestLimit is etcd's limit for requests; 0 means etcd's default.
	RequestLimit int
	// ProgressInterval is the longest silence of a stream; 0 means 1 s.
	ProgressInterval time.Duration
	// AckTimeout is how long an acknowledgement may take; 0 means 5 s.
	AckTimeout time.Duration
	// StreamPatience is how long a stream may have no leader, or refuse what is
	// right, before it is made anew, while NATS answers otherwise; 0 means 10 s. A
	// replicated stream that loses its leader needs up to 9 s for another one.
	StreamPatience time.Duration
	// Registerer gets the metrics; nil means none.
	Registerer prometheus.Registerer
}

// DefaultRequestLimit is etcd's default of --max-request-bytes.
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
	if c.Keys == "" {
		c.Keys = DefaultKeys
	}
	if c.RequestLimit == 0 {
		c.RequestLimit = DefaultRequestLimit
	}
	return c
}

// Relay publishes the changes of an etcd, while it is the elected one.
type Relay struct {
	cfg     RelayConfig
	js      jetstream.JetStream
	metrics *relayMetrics
	seams   relaySeams

	mu sync.Mutex
	// replaced has the tiers whose streams tell a history that etcd does not have
	// any more, as this relay has found since it was elected; guarded by mu.
	replaced map[Tier]bool
	status   RelayStatus // guarded by mu
}

// relaySeams let tests do to a relay what happens to processes and networks,
// and replace its fence by a worse one.
type relaySeams struct {
	// publish runs before each message is sent.
	publish func(*message)
	// opening runs before each stream is opened, and guarded between making sure of
	// the election and deleting a stream.
	opening func(ctx context.Context)
	guarded func()
	// answer may swallow an acknowledgement.
	answer func(*nats.Msg) bool
	// fence replaces the headers that fence a message, and limits what may be under
	// way.
	fence  func(f *feed, m *message) nats.Header
	limits *limits
	// killed makes the end of Run that of a process: nothing is waited for and
	// the lease stays.
	killed bool
}

// NewRelay returns a relay.
func NewRelay(c RelayConfig) (*Relay, error) {
	c = c.withDefaults()
	js, err := jetstream.New(c.Conn)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	return &Relay{cfg: c, js: js, metrics: newRelayMetrics(c.Registerer), replaced: map[Tier]bool{}}, nil
}

// CheckMaxPayload returns an error if a message cannot carry the largest object
// together with its previous state. It may be asked when the connection is up.
func CheckMaxPayload(conn *nats.Conn, requestLimit int) error {
	need := int64(2*requestLimit + 64<<10)
	if have := conn.MaxPayload(); have < need {
		return fmt.Errorf("max_payload of NATS is %d bytes, but events of an etcd that takes requests of %d bytes need %d", have, requestLimit, need)
	}
	return nil
}

// Run waits until it is elected and publishes until it is not, again and again.
// It ends with its context, without an error.
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

// connected waits until there is a connection to NATS: whoever has none must not
// be elected, as the others would wait for it.
func (r *Relay) connected(ctx context.Context) error {
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

// lead is one session in etcd.
func (r *Relay) lead(ctx context.Context, pause *backoff) error {
	if err := r.connected(ctx); err != nil {
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
	if r.seams.killed {
		defer session.Orphan()
	} else {
		defer func() {
			// The context of the session may be over; the lease is given back
			// all the same, or the next relay would wait for its end.
			session.Orphan()
			revoke, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = r.cfg.Etcd.Revoke(revoke, session.Lease())
		}()
	}
	elected := &election{etcd: r.cfg.Etcd, key: r.cfg.Keys + "relay", identity: r.cfg.Identity, session: session}
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
		r.metrics.terms.Inc()
		if time.Since(start) > 10*time.Second {
			pause.reset()
		}
		if errors.Is(err, errDeposed) || !r.knowsBetter() && (errors.Is(err, errFruitless) || !r.cfg.Conn.IsConnected()) {
			return fmt.Errorf("give way to another relay: %w", err)
		}
		log.Error(err, "relay of the event log begins anew")
		pause.wait(ctx)
	}
	return nil
}

// errFruitless means that no stream could be published to for a while. Another
// process is given the chance then: NATS may refuse this one alone.
var errFruitless = errors.New("no stream can be published to")

// markReplaced notes that etcd has another history than the streams tell.
func (r *Relay) markReplaced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tier := range r.cfg.Tiers {
		r.replaced[tier] = true
	}
}

// forgetReplaced leaves it to the next relay to find out: it may have made the
// streams anew when this one is elected again.
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

// knowsBetter reports whether this relay knows of streams that tell another history
// than etcd, which others might not notice.
func (r *Relay) knowsBetter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.replaced) > 0
}

// errDeposed means that another relay is the elected one.
var errDeposed = errors.New("no longer elected")

// epoch returns a number that no relay has had before: the revision of a write
// that only the elected one can do.
func (r *Relay) epoch(ctx context.Context, e *election) (uint64, error) {
	resp, err := e.guard(ctx, clientv3.OpPut(r.cfg.Keys+"epoch", r.cfg.Identity))
	if err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	return uint64(resp.Header.GetRevision()), nil
}

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
	// replaced tells that the last term found etcd's history replaced, so the
	// streams tell another one, whatever they end with. By Run's goroutine.
	replaced bool
}

// relaySeams let tests do to a relay what happens to processes and networks,
// and replace its fence by a worse one.
type relaySeams struct {
	// publish runs before each message is sent.
	publish func(*message)
	// answer may swallow an acknowledgement.
	answer func(*nats.Msg) bool
	// fence replaces the headers that fence a message.
	fence func(s *feed, m *message) nats.Header
	// killed makes the end of Run that of a process: nothing is waited for and
	// the lease stays.
	killed bool
}

// NewRelay returns a relay. It fails if the messages that NATS takes are too
// small for the largest event.
func NewRelay(c RelayConfig) (*Relay, error) {
	c = c.withDefaults()
	js, err := jetstream.New(c.Conn)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	r := &Relay{cfg: c, js: js, metrics: newRelayMetrics(c.Registerer)}
	if c.Conn.IsConnected() {
		if err := CheckMaxPayload(c.Conn, c.RequestLimit); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// CheckMaxPayload tells whether a message can carry the largest object together
// with its previous state. It may be asked when the connection is up.
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
	pause := backoff{}
	for {
		err := r.lead(ctx, &pause)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "relay of the event log is not elected")
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

// fruitless is how many terms may fail one after another before another process
// is given the chance: NATS may refuse this one alone. One whose streams tell
// a history that was replaced goes on, as only it knows.
const fruitless = 3

// lead is one session in etcd.
func (r *Relay) lead(ctx context.Context, pause *backoff) error {
	if err := r.connected(ctx); err != nil {
		return fmt.Errorf("wait for NATS: %w", err)
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
	r.metrics.elected.Set(1)
	defer r.metrics.elected.Set(0)
	for failed := 1; ctx.Err() == nil; failed++ {
		start := time.Now()
		err := r.serve(ctx, elected)
		if ctx.Err() != nil {
			break
		}
		r.metrics.terms.Inc()
		log.Error(err, "relay of the event log begins anew")
		if time.Since(start) > 10*time.Second {
			pause.reset()
			failed = 1
		}
		if !r.replaced && (failed >= fruitless || !r.cfg.Conn.IsConnected()) {
			return fmt.Errorf("give way to another relay: %w", err)
		}
		pause.wait(ctx)
	}
	return nil
}

// errDeposed means that another relay is the elected one.
var errDeposed = errors.New("no longer elected")

// epoch returns a number that no relay has had before: the revision of a write
// that only the elected one can do.
func (r *Relay) epoch(ctx context.Context, e *election) (uint64, error) {
	resp, err := r.cfg.Etcd.Txn(ctx).
		If(e.holds()).
		Then(clientv3.OpPut(r.cfg.Keys+"epoch", r.cfg.Identity)).
		Commit()
	if err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	if !resp.Succeeded {
		return 0, errDeposed
	}
	return uint64(resp.Header.GetRevision()), nil
}

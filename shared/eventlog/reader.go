package eventlog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/etcdstore/kv"
)

// Sink receives the changes of a key space. Both methods are called by one
// goroutine, the one that runs the Reader, and hold it up while they run.
type Sink interface {
	// Apply takes complete revisions, in order: nothing at or before
	// b.Revision is still to come. The slice of events is the sink's, the bytes
	// in them are shared and must not be changed.
	Apply(b kv.Batch)
	// Reset says that the feed goes on after revision, and that what happened
	// between the last batch and it cannot be told. It is always the first
	// call. The revision may be lower than that of the last batch: etcd was
	// restored from a backup then.
	Reset(revision int64)
}

// ReaderConfig is what a Reader needs.
type ReaderConfig struct {
	// Etcd is the truth, and the source where the stream is none.
	Etcd *clientv3.Client
	// Conn reaches NATS with the tier's credentials; nil means that there is no
	// event log and etcd is the only source. The caller closes it after Run.
	Conn *nats.Conn
	// Routes are those of the relay.
	Routes *Routes
	// Tier is whose changes are wanted, and whose ranges of keys are watched where the
	// stream is no source. Without NATS it may be empty: then all changes below the
	// routes' prefix are.
	Tier Tier
	// Keys is that of the relay; empty means DefaultKeys.
	Keys string
	// Patience is how long the stream may be silent before etcd is asked
	// whether it has more; 0 means 3 s.
	Patience time.Duration
	// Histories is how many Since may read at a time; 0 means 4.
	Histories int
	// Registerer gets the metrics; nil means none.
	Registerer prometheus.Registerer
}

// Reader follows the changes of one tier, through the stream where it is whole
// and else from etcd.
type Reader struct {
	cfg     ReaderConfig
	js      jetstream.JetStream // nil without NATS
	stream  string
	metrics *readerMetrics
	history *histories
	asks    chan struct{}

	seams readerSeams

	mu          sync.Mutex
	status      Status // guarded by mu
	covered     coverage
	lookingBack chan struct{} // has one place: one at a time reads everything
	// revision is the last that the sink has.
	revision atomic.Int64
}

// readerSeams let tests make a reader worse.
type readerSeams struct {
	// checker makes what verifies the stream.
	checker func() checker
	// pull is how many messages may be under way.
	pull int
	// lookBack is how many messages may be read to prove that a subject is quiet.
	lookBack uint64
	// blind readers believe a silent stream and any incarnation.
	blind bool
}

// checker is what verifies the messages of a stream; see verifier.
type checker interface {
	// accept takes the next message, and how it came.
	accept(m *message, raw jetstream.Msg) (step, error)
	// position returns the revision up to which everything was told, once it
	// is known.
	position() (int64, bool)
}

// chain is the checker of NewReader.
type chain struct{ *verifier }

func (c chain) accept(m *message, _ jetstream.Msg) (step, error) { return c.verifier.accept(m) }

func (c chain) position() (int64, bool) { return c.complete, c.anchored }

// NewReader returns a reader.
func NewReader(c ReaderConfig) (*Reader, error) {
	if c.Patience == 0 {
		c.Patience = 3 * time.Second
	}
	if c.Keys == "" {
		c.Keys = DefaultKeys
	}
	if c.Histories == 0 {
		c.Histories = 4
	}
	r := &Reader{cfg: c, asks: make(chan struct{}, 1), lookingBack: make(chan struct{}, 1), seams: readerSeams{
		checker: func() checker { return chain{&verifier{}} }, pull: pullMessages, lookBack: lookBackMessages,
	}}
	r.status.Source = SourceEtcd
	if c.Conn != nil {
		js, err := jetstream.New(c.Conn)
		if err != nil {
			return nil, fmt.Errorf("JetStream: %w", err)
		}
		r.js, r.stream = js, c.Routes.Stream(c.Tier)
	}
	r.metrics = newReaderMetrics(c.Registerer, string(c.Tier), r.Status)
	r.history = newHistories(r, c.Histories)
	return r, nil
}

// wants tells whether a key's changes are this reader's.
func (r *Reader) wants(key string) bool {
	return r.cfg.Tier == "" || r.cfg.Routes.Of(key).Tier == r.cfg.Tier
}

// Run feeds the sink until the context ends, and then returns nil. Whatever
// happens to NATS and etcd is waited for.
func (r *Reader) Run(ctx context.Context, sink Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &following{Reader: r, ctx: ctx, sink: sink, etcd: kv.New(r.cfg.Etcd)}
	defer func() {
		cancel()
		f.close()
	}()
	return f.run()
}

// RequestProgress asks for a batch that says how far the feed is, also where
// nothing happens. Calls are coalesced; the question is repeated until an answer
// comes, so calling once is enough. It does not wait for the answer, which comes
// through Sink.Apply and may be older than the call by the time that it takes
// through the log: who waits for a revision asks again until he has it.
func (r *Reader) RequestProgress(ctx context.Context) error {
	select {
	case r.asks <- struct{}{}:
	default: // one is waiting already
	}
	return ctx.Err()
}

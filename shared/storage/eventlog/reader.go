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

	"triune.dev/shared/storage/kv"
)

// Sink receives the changes of a key space. The goroutine that runs the Reader calls both
// methods and waits for them.
type Sink interface {
	// Apply receives complete revisions, in order: no later call has a change at or before
	// b.Revision. The sink owns the slice of events; the bytes in it are shared and must not be
	// changed.
	Apply(b kv.Batch)
	// Reset says that the feed continues after revision, and that the changes between the last
	// batch and revision are lost. It is always the first call. The revision may be lower than
	// that of the last batch, if etcd was restored from a backup.
	Reset(revision int64)
}

// ReaderConfig configures a Reader.
type ReaderConfig struct {
	// Etcd is the source of truth, and the fallback while the stream is unusable.
	Etcd *clientv3.Client
	// Conn is a connection with the tier's credentials. Nil means that there is no event log
	// and etcd is the only source. The caller closes it after Run.
	Conn *nats.Conn
	// Routes must equal those of the relay.
	Routes *Routes
	// Tier is the tier whose changes to read, and whose ranges of keys to watch in etcd.
	// Without NATS it may be empty, which means all changes below the prefix of the routes.
	Tier Tier
	// StatePrefix is that of the relay; empty means DefaultStatePrefix.
	StatePrefix string
	// Patience is how long the stream may be silent before the reader asks etcd whether it is
	// ahead; 0 means 3 s.
	Patience time.Duration
	// MaxHistoryReads bounds the concurrent reads of Since; 0 means 4.
	MaxHistoryReads int
	// Registerer registers the metrics; nil means none.
	Registerer prometheus.Registerer
}

// Reader reads the changes of one tier: from its stream while that is intact, and otherwise
// from etcd.
type Reader struct {
	cfg              ReaderConfig
	js               jetstream.JetStream // nil without NATS
	stream           string
	metrics          *readerMetrics
	history          *historyCache
	progressRequests chan struct{}

	hooks readerHooks

	mu        sync.Mutex
	status    Status // guarded by mu
	coverage  coverage
	extending chan struct{} // semaphore of extendCoverage
	// revision is the revision that the sink has reached.
	revision atomic.Int64
}

// readerHooks let tests weaken a reader.
type readerHooks struct {
	// newChecker returns the checker of the stream's messages.
	newChecker func() checker
	// maxPending is the maximum number of outstanding messages.
	maxPending int
	// maxCoverageMessages bounds the messages read to prove that a subject is quiet.
	maxCoverageMessages uint64
	// blind makes the reader trust a silent stream and any incarnation.
	blind bool
}

// checker verifies the messages of a stream; see verifier.
type checker interface {
	// accept verifies the next message; raw is the message as received.
	accept(m *message, raw jetstream.Msg) (outcome, error)
	// verifiedTo returns the revision up to which everything was verified, and false if that is
	// not known yet.
	verifiedTo() (int64, bool)
}

// chainChecker is the default checker.
type chainChecker struct{ *verifier }

func (c chainChecker) accept(m *message, _ jetstream.Msg) (outcome, error) {
	return c.verifier.accept(m)
}

func (c chainChecker) verifiedTo() (int64, bool) { return c.complete, c.synced }

// NewReader returns a reader. It does nothing until Run.
func NewReader(c ReaderConfig) (*Reader, error) {
	if c.Patience == 0 {
		c.Patience = 3 * time.Second
	}
	if c.StatePrefix == "" {
		c.StatePrefix = DefaultStatePrefix
	}
	if c.MaxHistoryReads == 0 {
		c.MaxHistoryReads = 4
	}
	r := &Reader{cfg: c, progressRequests: make(chan struct{}, 1), extending: make(chan struct{}, 1), hooks: readerHooks{
		newChecker: func() checker { return chainChecker{&verifier{}} }, maxPending: pullMaxMessages, maxCoverageMessages: maxCoverageMessages,
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
	r.history = newHistoryCache(r, c.MaxHistoryReads)
	return r, nil
}

// wants reports whether this reader is responsible for a key.
func (r *Reader) wants(key string) bool {
	return r.cfg.Tier == "" || r.cfg.Routes.Route(key).Tier == r.cfg.Tier
}

// Run feeds the sink until the context ends, and then returns nil. It outlasts every failure of
// NATS and etcd.
func (r *Reader) Run(ctx context.Context, sink Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	l := &readLoop{Reader: r, ctx: ctx, sink: sink, etcd: kv.New(r.cfg.Etcd)}
	defer func() {
		cancel()
		l.close()
	}()
	return l.run()
}

// RequestProgress requests a batch with the current revision even if there are no changes.
// Calls are coalesced, and the request is repeated until an answer arrives, so one call is
// enough. The answer comes through Sink.Apply, and may be older than the call by the latency of
// the log: a caller that waits for a certain revision asks again until it arrives.
func (r *Reader) RequestProgress(ctx context.Context) error {
	select {
	case r.progressRequests <- struct{}{}:
	default: // a request is already pending
	}
	return ctx.Err()
}

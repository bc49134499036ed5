package eventlog

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"
)

// received is one message of the stream. If fresh is set it is none, but says
// that what follows begins at the end of the stream, whatever came before.
type received struct {
	m     jetstream.Msg
	fresh bool
}

// subscription keeps a consumer on the stream and delivers what it gets, unverified.
type subscription struct {
	js     jetstream.JetStream
	stream string
	out    chan received
	again  chan struct{} // asks for a fresh start
	pull   int           // messages under way at most
}

// Limits of what a consumer may have on its way to a reader that does not take
// it.
const (
	pullMessages = 500
	pullBytes    = 16 << 20
	// consumerLife is how long a server keeps the consumer of a reader that
	// went away.
	consumerLife = 30 * time.Second
)

func newSubscription(js jetstream.JetStream, stream string, pull int) *subscription {
	return &subscription{js: js, stream: stream, pull: pull, out: make(chan received, 64), again: make(chan struct{}, 1)}
}

// restart makes the subscription begin anew at the end of the stream. What it had
// under way comes before the received that says so.
func (s *subscription) restart() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// run works until the context ends. A consumer that is lost is replaced by one
// that begins after the last message; whether that is the right one, the chain
// tells.
func (s *subscription) run(ctx context.Context) {
	pause := backoff{}
	var last uint64
	for ctx.Err() == nil {
		next, got := s.consume(ctx, last)
		if got {
			pause.reset()
		}
		last = next
		pause.wait(ctx)
	}
}

// consume uses one consumer until it is lost. It returns the sequence to go on
// after, 0 for the end of the stream.
func (s *subscription) consume(ctx context.Context, after uint64) (last uint64, got bool) {
	config := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerLife,
		DeliverPolicy: jetstream.DeliverLastPolicy, MaxDeliver: 1,
	}
	if after == 0 {
		select {
		case <-s.again: // this is the fresh start
		default:
		}
	} else {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, after+1
	}
	create, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	consumer, err := s.js.CreateConsumer(create, s.stream, config)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("no consumer of the event log", "stream", s.stream, "err", err)
		return 0, false
	}
	defer s.remove(ctx, consumer)
	if after == 0 && !s.deliver(ctx, received{fresh: true}) {
		return 0, false
	}
	// Once stopped, the consumer must not deliver any more: the next one may
	// begin elsewhere.
	using, stop := context.WithCancel(ctx)
	defer stop()
	var lastMsg jetstream.Msg // by the handler's goroutine until handling is closed
	lost := make(chan error, 1)
	handling, err := consumer.Consume(func(m jetstream.Msg) {
		if using.Err() == nil && s.deliver(using, received{m: m}) {
			lastMsg = m
		}
	}, jetstream.PullMaxMessagesWithBytesLimit(s.pull, pullBytes), jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			select {
			case lost <- err:
			default:
			}
		}))
	if err != nil {
		return after, false
	}
	closed, fresh := handling.Closed(), false
	select {
	case <-ctx.Done():
	case <-s.again:
		fresh = true
	case err := <-lost:
		klog.FromContext(ctx).V(2).Info("consumer of the event log is lost", "stream", s.stream, "err", err)
	case <-closed:
	}
	stop()
	handling.Stop()
	<-closed
	if fresh || lastMsg == nil {
		return 0, lastMsg != nil
	}
	meta, err := lastMsg.Metadata()
	if err != nil {
		return 0, true
	}
	return meta.Sequence.Stream, true
}

// deliver hands something to the reader, and returns false if the context ended
// first.
func (s *subscription) deliver(ctx context.Context, r received) bool {
	select {
	case s.out <- r:
		return true
	case <-ctx.Done():
		return false
	}
}

// remove deletes a consumer; if that is not possible, the server does so later.
func (s *subscription) remove(ctx context.Context, c jetstream.Consumer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.js.DeleteConsumer(ctx, s.stream, c.CachedInfo().Name)
}

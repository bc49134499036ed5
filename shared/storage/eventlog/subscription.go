package eventlog

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/klog/v2"
)

// delivery is one message of the stream. If restarted is set it carries no message, but says
// that the following ones begin at the end of the stream, whatever came before.
type delivery struct {
	msg       jetstream.Msg
	restarted bool
}

// subscription maintains a consumer on the stream and delivers its messages, unverified.
type subscription struct {
	js         jetstream.JetStream
	stream     string
	deliveries chan delivery
	restarts   chan struct{} // requests a restart
	maxPending int           // maximum number of outstanding messages
}

// Limits of the messages that are on their way to a slow reader.
const (
	pullMaxMessages = 500
	pullMaxBytes    = 16 << 20
	// consumerInactiveThreshold is how long a server keeps the consumer of a reader that
	// disappeared.
	consumerInactiveThreshold = 30 * time.Second
)

func newSubscription(js jetstream.JetStream, stream string, maxPending int) *subscription {
	return &subscription{js: js, stream: stream, maxPending: maxPending, deliveries: make(chan delivery, 64), restarts: make(chan struct{}, 1)}
}

// restart makes the subscription start again at the end of the stream. Messages from before
// that precede the delivery that has restarted set.
func (s *subscription) restart() {
	select {
	case s.restarts <- struct{}{}:
	default:
	}
}

// run delivers messages until the context ends. It replaces a lost consumer by one that starts
// after the last message; the chain shows whether that is correct.
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

// consume uses one consumer until it is lost. It returns the sequence to continue after, or 0
// for the end of the stream.
func (s *subscription) consume(ctx context.Context, after uint64) (last uint64, got bool) {
	config := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerInactiveThreshold,
		DeliverPolicy: jetstream.DeliverLastPolicy, MaxDeliver: 1,
	}
	if after == 0 {
		select {
		case <-s.restarts: // this call is the restart
		default:
		}
	} else {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, after+1
	}
	create, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	consumer, err := s.js.CreateConsumer(create, s.stream, config)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("cannot create a consumer of the event log", "stream", s.stream, "err", err)
		return 0, false
	}
	defer s.remove(ctx, consumer)
	if after == 0 && !s.deliver(ctx, delivery{restarted: true}) {
		return 0, false
	}
	// A stopped consumer must not deliver any more, because the next one may start elsewhere.
	using, stop := context.WithCancel(ctx)
	defer stop()
	var lastMsg jetstream.Msg // written by the handler's goroutine until handling is closed
	lost := make(chan error, 1)
	handling, err := consumer.Consume(func(m jetstream.Msg) {
		if using.Err() == nil && s.deliver(using, delivery{msg: m}) {
			lastMsg = m
		}
	}, jetstream.PullMaxMessagesWithBytesLimit(s.maxPending, pullMaxBytes), jetstream.PullHeartbeat(time.Second),
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
	case <-s.restarts:
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

// deliver passes d to the reader. It returns false if the context ended first.
func (s *subscription) deliver(ctx context.Context, d delivery) bool {
	select {
	case s.deliveries <- d:
		return true
	case <-ctx.Done():
		return false
	}
}

// remove deletes a consumer. If that fails, the server deletes it after a while.
func (s *subscription) remove(ctx context.Context, c jetstream.Consumer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.js.DeleteConsumer(ctx, s.stream, c.CachedInfo().Name)
}

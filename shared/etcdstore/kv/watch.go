package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind tells what happened to a key.
type Kind int

const (
	Created Kind = iota + 1
	Modified
	Deleted
)

// Event is one change of one key.
type Event struct {
	Kind     Kind
	Key      string
	Revision int64
	// Value is the new value, nil for Deleted.
	Value []byte
	// Previous is the value before, nil for Created.
	Previous []byte
}

// Batch is what a Stream delivers at once. It never ends inside a revision.
type Batch struct {
	Events []Event
	// Revision: no event at or before it is still to come on this stream.
	Revision int64
	// Progress marks a batch that says nothing but how far the stream is.
	Progress bool
}

// CompactedError says that etcd no longer has the history a watch needs. The
// oldest revision that it does have is Oldest, or 0 where etcd did not say.
type CompactedError struct {
	Wanted, Oldest int64
}

func (e *CompactedError) Error() string {
	return fmt.Sprintf("history after revision %d is compacted (oldest %d)", e.Wanted, e.Oldest)
}

// Unwrap makes errors.Is(err, rpctypes.ErrCompacted) true.
func (e *CompactedError) Unwrap() error { return rpctypes.ErrCompacted }

// WatchOptions names the keys and the point in history a stream starts at.
type WatchOptions struct {
	// Key is one key, or with Prefix the beginning of all wanted keys.
	Key    string
	Prefix bool
	// After is the revision before the first wanted one. It may lie in the
	// future, then everything up to it is left out.
	After int64
	// ProgressNotify asks etcd for progress on its own schedule, in addition
	// to what RequestProgress asks for.
	ProgressNotify bool
}

// Stream is one watch. It is used by one goroutine: receive from C, hand what
// was received to Accept. It ends with its context.
type Stream struct {
	client *Client
	ctx    context.Context
	opts   WatchOptions
	after  int64 // last revision seen
	floor  int64 // events up to it are dropped
	ch     clientv3.WatchChan
	cancel context.CancelFunc // of ch

	// acknowledged is the revision at which etcd has set up the watch, and
	// generation the gRPC stream on which it did; see generation.go.
	acknowledged int64
	generation   uint64
}

// Watch opens a stream. The call returns when etcd has accepted the watch or
// the context is done; there is no error, it comes through C.
func (c *Client) Watch(ctx context.Context, o WatchOptions) *Stream {
	s := &Stream{client: c, ctx: ctx, opts: o, after: o.After, floor: o.After, cancel: func() {}}
	// A watch that begins in the future would keep etcd from answering
	// progress requests, for all watches of the stream, until then. That may be
	// never: after a restore from a backup clients come with such revisions.
	// So it begins now, and what comes too early is dropped here.
	if o.After > c.seen.Load() {
		if current, err := c.Revision(ctx, o.Key); err == nil {
			s.after = min(o.After, current)
		}
	}
	s.Reopen()
	return s
}

// Reopen starts the watch again from where it stopped, after Accept returned an
// error for which Retriable is true.
func (s *Stream) Reopen() {
	s.cancel()
	s.client.own.renew()
	ctx, cancel := context.WithCancel(s.client.watchContext(s.ctx))
	s.cancel, s.acknowledged = cancel, 0
	// A revision may carry more than a gRPC message should: fragments are put
	// together by the client before they are delivered.
	opts := []clientv3.OpOption{clientv3.WithRev(s.after + 1), clientv3.WithPrevKV(), clientv3.WithFragment(), clientv3.WithCreatedNotify()}
	if s.opts.Prefix {
		opts = append(opts, clientv3.WithPrefix())
	}
	if s.opts.ProgressNotify {
		opts = append(opts, clientv3.WithProgressNotify())
	}
	s.ch = s.client.watcher.Watch(ctx, s.opts.Key, opts...)
}

// C delivers what Accept understands. It is closed when the context is done or
// the client is closed.
func (s *Stream) C() <-chan clientv3.WatchResponse { return s.ch }

// ErrReconnected means that etcd's client has made another connection for the
// watch of a client WithOwnStream. Whether the etcd behind it has the same
// history, which a restore from a backup may have replaced, is for the caller to
// find out, before he opens another stream.
var ErrReconnected = errors.New("watch has another connection")

// Accept turns what C delivered into a batch. It fails with a *CompactedError
// when history is missing; after any error the stream is over, unless Retriable
// says that Reopen may help.
func (s *Stream) Accept(resp clientv3.WatchResponse) (Batch, error) {
	if err := resp.Err(); err != nil {
		if errors.Is(err, rpctypes.ErrCompacted) {
			return Batch{}, &CompactedError{Wanted: s.after, Oldest: resp.CompactRevision}
		}
		return Batch{}, err
	}
	if s.client.own.used && s.acknowledged != 0 && generationOf(resp) != s.generation {
		return Batch{}, ErrReconnected
	}
	if resp.Created {
		s.acknowledged, s.generation = resp.Header.GetRevision(), generationOf(resp)
		s.client.own.acknowledged.Store(true)
	}
	if resp.IsProgressNotify() && !s.believes(resp) {
		return Batch{Revision: max(s.after, s.floor)}, nil
	}
	batch, missing := parse(resp, s.after)
	for _, e := range missing {
		if err := s.fetchPrevious(e); err != nil {
			return Batch{}, err
		}
	}
	s.after = s.client.saw(max(s.after, batch.Revision))
	return batch.above(s.floor), nil
}

// believes tells whether progress was determined after this watch was set up.
// If the connection has been replaced since, that cannot be told of this watch
// any more, and it begins anew.
func (s *Stream) believes(progress clientv3.WatchResponse) bool {
	if s.acknowledged != 0 && generationOf(progress) != s.generation {
		s.Reopen()
		return false
	}
	return s.acknowledged != 0 && (s.client.own.used || progress.Header.GetRevision() > s.acknowledged)
}

// above drops what is not after floor.
func (b Batch) above(floor int64) Batch {
	if floor == 0 || b.Revision > floor && (len(b.Events) == 0 || b.Events[0].Revision > floor) {
		return b
	}
	b.Events = slices.DeleteFunc(b.Events, func(e Event) bool { return e.Revision <= floor })
	b.Revision = max(b.Revision, floor)
	return b
}

// fetchPrevious reads the value before an event that came without it. etcd
// leaves it out where it has been compacted, which ends the history that can be
// told, but also where it could not read it just then, while it shut down.
func (s *Stream) fetchPrevious(e *Event) error {
	item, err := s.client.Get(s.ctx, e.Key, ReadOptions{Revision: e.Revision - 1})
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return err
	}
	if err != nil || item.KV == nil {
		return &CompactedError{Wanted: s.after}
	}
	e.Previous = item.KV.Value
	return nil
}

// parse is the pure part of Accept; after is the last revision seen before. The
// events that lack their previous value are also returned by themselves.
func parse(resp clientv3.WatchResponse, after int64) (batch Batch, missing []*Event) {
	if len(resp.Events) == 0 {
		if !resp.IsProgressNotify() {
			// Acknowledgements of the watch itself say nothing about progress.
			return Batch{Revision: after}, nil
		}
		return Batch{Revision: resp.Header.GetRevision(), Progress: true}, nil
	}
	events := make([]Event, len(resp.Events))
	for i, e := range resp.Events {
		events[i] = Event{Kind: kindOf(e), Key: string(e.Kv.Key), Revision: e.Kv.ModRevision}
		ev := &events[i]
		if ev.Kind != Deleted {
			ev.Value = e.Kv.Value
		}
		if ev.Kind == Created {
			continue
		}
		if e.PrevKv == nil {
			missing = append(missing, ev)
			continue
		}
		ev.Previous = e.PrevKv.Value
	}
	return Batch{Events: events, Revision: events[len(events)-1].Revision}, missing
}

func kindOf(e *clientv3.Event) Kind {
	switch {
	case e.Type == clientv3.EventTypeDelete:
		return Deleted
	case e.IsCreate():
		return Created
	default:
		return Modified
	}
}

// Retriable tells whether a stream that ended with err can be continued on the
// same cluster: etcd lost its leader, or could not be reached for a while.
func Retriable(err error) bool {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return false
	}
	var etcdErr rpctypes.EtcdError
	if errors.As(err, &etcdErr) {
		return etcdErr.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}

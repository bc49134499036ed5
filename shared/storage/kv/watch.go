package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Kind is the kind of a change to a key.
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

// Batch is a list of events from a Stream. It never ends within a revision.
type Batch struct {
	Events []Event
	// Revision is the revision up to which the stream has delivered all events.
	Revision int64
	// Progress marks a batch without events, which reports only the revision.
	Progress bool
}

// CompactedError means that etcd no longer has the history that a watch needs. Oldest is the
// oldest revision that it has, 0 if unknown.
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
	// Ranges are the wanted keys where they have no common prefix. They must not
	// overlap. Key and Prefix count only where there are none.
	Ranges []KeyRange
	// After is the revision before the first wanted one. It may lie in the
	// future, then everything up to it is left out.
	After int64
}

// ranges returns the wanted keys.
func (o WatchOptions) ranges() []KeyRange {
	switch {
	case len(o.Ranges) > 0:
		return o.Ranges
	case o.Prefix:
		return []KeyRange{PrefixKeys(o.Key)}
	}
	return []KeyRange{{Key: o.Key}}
}

// Stream is one watch, of one or several ranges. It is used by one goroutine: receive
// from C, pass each Response to Accept. It ends with its context.
type Stream struct {
	client *Client
	ctx    context.Context
	after  int64 // last revision that all ranges have delivered
	floor  int64 // events up to it are dropped
	ch     <-chan Response
	order  order

	// acknowledged counts the ranges whose watch etcd has set up, on the gRPC stream of
	// this generation; see generation.go.
	acknowledged int
	generation   uint64
}

// Watch opens a stream, which takes the place of the client's last one. The call
// returns when etcd has accepted the watch or the context is done; there is no error,
// it comes through C.
func (c *Client) Watch(ctx context.Context, o WatchOptions) *Stream {
	s := &Stream{client: c, ctx: ctx, after: o.After, floor: o.After}
	// A watch that begins in the future would keep etcd from answering progress
	// requests until then. That may be never: after a restore from a backup a revision
	// may be one that etcd does not reach. So it begins now, and earlier events are dropped
	// here.
	ranges := o.ranges()
	if o.After > c.seen.Load() {
		if current, err := c.Revision(ctx, ranges[0].Key); err == nil {
			s.after = min(o.After, current)
		}
	}
	s.order = newOrder(len(ranges), s.after)
	c.own.renew()
	// A revision may carry more than a gRPC message should: fragments are put
	// together by the client before they are delivered.
	opts := []clientv3.OpOption{clientv3.WithRev(s.after + 1), clientv3.WithPrevKV(), clientv3.WithFragment(), clientv3.WithCreatedNotify()}
	s.ch = c.watchAll(ctx, ranges, opts)
	return s
}

// C delivers what Accept understands. It is closed when the context is done or
// the client is closed.
func (s *Stream) C() <-chan Response { return s.ch }

// ErrReconnected means that etcd's client has made another connection for the
// watch. Whether the etcd behind it has the same history, which a restore from a
// backup may have replaced, is for the caller to find out, before he opens another
// stream.
var ErrReconnected = errors.New("watch has another connection")

// Accept turns what C delivered into a batch. It fails with a *CompactedError
// when history is missing; after any error the stream is over.
func (s *Stream) Accept(resp Response) (Batch, error) {
	if err := resp.Err(); err != nil {
		if errors.Is(err, rpctypes.ErrCompacted) {
			return Batch{}, &CompactedError{Wanted: s.after, Oldest: resp.CompactRevision}
		}
		return Batch{}, err
	}
	generation := generationOf(resp.WatchResponse)
	if s.acknowledged > 0 && generation != s.generation {
		return Batch{}, ErrReconnected
	}
	if resp.Created {
		s.acknowledged, s.generation = s.acknowledged+1, generation
		s.client.own.acknowledged.Store(s.acknowledged == len(s.order.reached))
	}
	if resp.IsProgressNotify() && s.acknowledged < len(s.order.reached) {
		return Batch{Revision: max(s.after, s.floor)}, nil
	}
	batch, missing := parse(resp.WatchResponse, s.order.reached[resp.of])
	for _, e := range missing {
		if err := s.fetchPrevious(e); err != nil {
			return Batch{}, err
		}
	}
	s.client.saw(batch.Revision)
	batch = s.order.add(resp.of, batch)
	s.after = max(s.after, batch.Revision)
	return batch.above(s.floor), nil
}

// Waiting reports whether Accept holds back events until etcd reports the progress of the
// other ranges, which it does on request; see RequestProgress.
func (s *Stream) Waiting() bool { return len(s.order.pending) > 0 }

// above returns b without events at or before floor.
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

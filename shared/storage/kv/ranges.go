package kv

import (
	"cmp"
	"context"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// KeyRange is the keys from Key (inclusive) to End (exclusive), or only Key where End
// is empty: key and range_end of etcd's API.
type KeyRange struct{ Key, End string }

// PrefixKeys is the range of all keys that begin with prefix.
func PrefixKeys(prefix string) KeyRange {
	return KeyRange{Key: prefix, End: clientv3.GetPrefixRangeEnd(prefix)}
}

// Response is what etcd has said about one of a stream's ranges.
type Response struct {
	clientv3.WatchResponse
	of int // index of the range
}

// watchAll opens a watch of etcd for each range, on the client's own gRPC stream, and
// delivers what they say on one channel, which is closed when the context is done or one
// of them has ended.
func (c *Client) watchAll(ctx context.Context, ranges []KeyRange, opts []clientv3.OpOption) <-chan Response {
	ctx, cancel := context.WithCancel(c.watchContext(ctx))
	out := make(chan Response)
	var open sync.WaitGroup
	for i, r := range ranges {
		ch := c.watcher.Watch(ctx, r.Key, append(slices.Clip(opts), clientv3.WithRange(r.End))...)
		open.Go(func() {
			defer cancel()
			for resp := range ch {
				select {
				case out <- Response{resp, i}:
				case <-ctx.Done():
				}
			}
		})
	}
	go func() {
		open.Wait()
		cancel()
		close(out)
	}()
	return out
}

// order puts the events of several ranges into the order of their revisions. etcd keeps
// the order within a range only: one that lags behind may tell an older revision later.
// So events are kept back until every range has reached them. A range in which nothing
// happens gets there by progress. That is told by etcd for all watches of a gRPC stream
// together, when none of them lags behind (progressIfSync in etcd's watchable_store.go),
// and its client delivers it to each, after the events before it.
//
// A revision is told by one range, or by several if a transaction has written to them.
// Within a range it is never divided.
type order struct {
	reached []int64 // by range, the revision after which its next event is
	pending []Event // those after the least of reached
}

func newOrder(ranges int, after int64) order {
	return order{reached: slices.Repeat([]int64{after}, ranges)}
}

// add takes a batch of one range and returns what all have reached with it.
func (o *order) add(of int, b Batch) Batch {
	if len(o.reached) == 1 {
		o.reached[0] = max(o.reached[0], b.Revision)
		return b
	}
	before := slices.Min(o.reached)
	o.reached[of] = max(o.reached[of], b.Revision)
	o.pending = append(o.pending, b.Events...)
	now := slices.Min(o.reached)
	// Each range delivers the answer to a question for progress. It counts once: when
	// the last of them comes to its revision or, where nothing has happened, for the first
	// range.
	answer := b.Progress && now >= b.Revision && (now > before || of == 0)
	if now == before || len(o.pending) == 0 {
		return Batch{Revision: now, Progress: answer}
	}
	slices.SortStableFunc(o.pending, func(a, b Event) int { return cmp.Compare(a.Revision, b.Revision) })
	n, _ := slices.BinarySearchFunc(o.pending, now+1, func(e Event, revision int64) int { return cmp.Compare(e.Revision, revision) })
	events := slices.Clone(o.pending[:n])
	o.pending = slices.Delete(o.pending, 0, n)
	return Batch{Events: events, Revision: now, Progress: answer && n == 0}
}

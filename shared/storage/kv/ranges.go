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

// Response is a response of etcd for one of a stream's ranges.
type Response struct {
	clientv3.WatchResponse
	of int // index of the range
}

// watchAll opens a watch of etcd for each range, on the client's own gRPC stream, and
// delivers their responses on one channel, which is closed when the context is done or one
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

// order sorts the events of several ranges by revision. etcd keeps the order only within a
// range: a range that lags may deliver an older revision later. So order holds events until
// all ranges have reached their revision. A range without changes reaches it by progress,
// which etcd sends for all watches of a gRPC stream together when none of them lags
// (progressIfSync in etcd's watchable_store.go). Its client delivers progress to each watch
// after the events before it.
//
// A revision may have events in several ranges if a transaction has written to them. Within a
// range, the events of a revision come in one response.
type order struct {
	reached []int64 // by range, the revision after which its next event is
	pending []Event // those after the least of reached
}

func newOrder(ranges int, after int64) order {
	return order{reached: slices.Repeat([]int64{after}, ranges)}
}

// add adds a batch of one range and returns the events that all ranges have reached with it.
func (o *order) add(of int, b Batch) Batch {
	if len(o.reached) == 1 {
		o.reached[0] = max(o.reached[0], b.Revision)
		return b
	}
	before := slices.Min(o.reached)
	o.reached[of] = max(o.reached[of], b.Revision)
	o.pending = append(o.pending, b.Events...)
	now := slices.Min(o.reached)
	// Each range delivers the response to a progress request. It is reported once: when
	// the last range reaches its revision or, without new events, for the first range.
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

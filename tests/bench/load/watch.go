package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"triune.dev/tests/bench/stats"
)

// Fan is a number of watchers with the same request. Each records the revisions that it has
// seen, in order, for [Fan.Verify].
type Fan struct {
	request  Request
	watchers []*watcher
	conns    []*Conn
	cancel   context.CancelFunc
	running  sync.WaitGroup

	delivered atomic.Int64
	bytes     atomic.Int64
	// want is the number of deliveries at which reached receives a value.
	want    atomic.Int64
	reached chan struct{}
	// wrote is the time of the current write, in Unix nanoseconds.
	wrote atomic.Int64
	ended chan error
}

// watcher belongs to its goroutine until the fan is closed, then to Verify.
type watcher struct {
	revisions []uint64
	latencies []time.Duration
}

// StreamsPerConn is the number of watches that can share a connection: kube-apiserver
// allows 100 streams.
const StreamsPerConn = 100

// Watch opens n watches of r, streams of them per connection, and returns when the server
// has answered all of them. The format of events follows from the Accept header of r. The
// caller closes the fan.
func Watch(ctx context.Context, n, streams int, r Request, targets ...Target) (*Fan, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &Fan{
		request: r, cancel: cancel, reached: make(chan struct{}, 1), ended: make(chan error, 1),
		conns: DialAll((n+streams-1)/streams, targets...),
	}
	opened := make(chan error, n)
	var opening sync.WaitGroup
	// Open 32 at a time; thousands at once would be an attack.
	slots := make(chan struct{}, 32)
	for i := range n {
		w := &watcher{}
		f.watchers = append(f.watchers, w)
		opening.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			opened <- f.open(ctx, f.conns[i/streams], w)
		})
	}
	opening.Wait()
	close(opened)
	var errs []error
	for err := range opened {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		f.Close()
		return nil, fmt.Errorf("open %d watches: %w", n, slices.DeleteFunc(errs, func(err error) bool { return err == nil })[0])
	}
	return f, nil
}

func (f *Fan) open(ctx context.Context, conn *Conn, w *watcher) error {
	resp, err := conn.send(ctx, f.request)
	if err != nil {
		return err
	}
	if err := f.request.checkStatus(resp); err != nil {
		resp.Body.Close()
		return err
	}
	f.running.Go(func() {
		defer resp.Body.Close()
		err := f.read(frames(f.request.Accept, resp.Body), w)
		if ctx.Err() == nil {
			select {
			case f.ended <- fmt.Errorf("%s: the watch ended: %w", f.request, err):
			default:
			}
		}
	})
	return nil
}

func frames(accept string, body io.Reader) framing {
	r := bufio.NewReaderSize(body, 8<<10)
	if strings.Contains(accept, "protobuf") {
		return &protobufFrames{r: r}
	}
	return &jsonFrames{r: r}
}

func (f *Fan) read(events framing, w *watcher) error {
	for {
		e, err := events.next()
		if err != nil {
			return err
		}
		switch e.Type {
		case "BOOKMARK":
			continue
		case "ERROR":
			return fmt.Errorf("%w: an ERROR event", ErrAnswer)
		}
		w.revisions = append(w.revisions, e.Revision)
		if wrote := f.wrote.Load(); wrote != 0 {
			w.latencies = append(w.latencies, time.Duration(time.Now().UnixNano()-wrote))
		}
		f.bytes.Add(int64(e.Size))
		if f.delivered.Add(1) == f.want.Load() {
			select {
			case f.reached <- struct{}{}:
			default:
			}
		}
	}
}

// Wrote marks the time of a write: latencies of later deliveries count from here.
func (f *Fan) Wrote() { f.wrote.Store(time.Now().UnixNano()) }

// Delivered returns the number of events delivered to all watchers, and the bytes of their
// frames.
func (f *Fan) Delivered() (events, bytes int64) { return f.delivered.Load(), f.bytes.Load() }

// Await waits until n events per watcher have been delivered since the fan was opened. It
// returns an error if a watch or ctx ends before.
func (f *Fan) Await(ctx context.Context, n int) error {
	want := int64(n) * int64(len(f.watchers))
	f.want.Store(want)
	for f.delivered.Load() < want {
		select {
		case <-f.reached:
		case err := <-f.ended:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%w: %d of %d events were delivered to %d watchers: %w", ErrAnswer, f.delivered.Load(), want, len(f.watchers), context.Cause(ctx))
		}
	}
	return nil
}

// Close closes all watches and waits for them.
func (f *Fan) Close() {
	f.cancel()
	f.running.Wait()
	CloseAll(f.conns)
}

// Latencies returns the median and the 99th percentile of the time between [Fan.Wrote] and
// the arrival of an event. The fan must be closed.
func (f *Fan) Latencies() (p50, p99 time.Duration) {
	var all []time.Duration
	for _, w := range f.watchers {
		all = append(all, w.latencies...)
	}
	slices.Sort(all)
	return stats.Percentile(all, 0.50), stats.Percentile(all, 0.99)
}

// Verify returns an error unless every watcher has seen exactly the written revisions in
// order. The fan must be closed.
func (f *Fan) Verify(written []uint64) error {
	want := slices.Sorted(slices.Values(written))
	var sum Faults
	for _, w := range f.watchers {
		sum = sum.plus(compare(w.revisions, want))
	}
	if sum != (Faults{}) {
		return fmt.Errorf("%w: %d watchers of %d events: %s", ErrAnswer, len(f.watchers), len(want), sum)
	}
	return nil
}

// Faults counts errors of a watch.
type Faults struct{ Missing, Repeated, Reordered, Unknown int }

func (f Faults) plus(o Faults) Faults {
	return Faults{f.Missing + o.Missing, f.Repeated + o.Repeated, f.Reordered + o.Reordered, f.Unknown + o.Unknown}
}

// String lists the counts.
func (f Faults) String() string {
	return fmt.Sprintf("%d missing, %d repeated, %d reordered, %d that nobody wrote", f.Missing, f.Repeated, f.Reordered, f.Unknown)
}

// compare counts the faults of one watcher; want is sorted and has no duplicates.
func compare(seen, want []uint64) Faults {
	if slices.Equal(seen, want) {
		return Faults{}
	}
	var f Faults
	known := make(map[uint64]bool, len(want)) // true if it was seen
	for _, revision := range want {
		known[revision] = false
	}
	var last uint64
	for _, revision := range seen {
		switch before, ok := known[revision]; {
		case !ok:
			f.Unknown++
			continue
		case before:
			f.Repeated++
			continue
		case revision < last:
			f.Reordered++
		}
		known[revision] = true
		last = max(last, revision)
	}
	for _, delivered := range known {
		if !delivered {
			f.Missing++
		}
	}
	return f
}

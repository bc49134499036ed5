package eventlog

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/kv"
)

// watcher gets the changes from a reader.
type watcher struct {
	name string
	tier Tier
	*recorder
}

// take removes and returns the events up to a revision, and the faults recorded so far.
func (r *recorder) take(upTo int64) (taken []kv.Event, wrong string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(r.faults) > 0:
		wrong = fmt.Sprint(r.faults)
	case len(r.resets) != 1:
		wrong = fmt.Sprintf("resets at %v", r.resets)
	}
	end := slices.IndexFunc(r.events, func(e kv.Event) bool { return e.Revision > upTo })
	if end < 0 {
		end = len(r.events)
	}
	taken = slices.Clone(r.events[:end])
	r.events = slices.Clone(r.events[end:])
	return taken, wrong
}

// lines formats a tier's events after a revision for comparison.
func lines(events []kv.Event, routes *Routes, tier Tier, after int64) (out []string) {
	for _, e := range events {
		if e.Revision > after && routes.Route(e.Key).Tier == tier {
			out = append(out, fmt.Sprintf("%d %d %s %.20q %x after %.20q %x", e.Revision, e.Kind, e.Key,
				e.Value, crc32.ChecksumIEEE(e.Value), e.Previous, crc32.ChecksumIEEE(e.Previous)))
		}
	}
	return out
}

// audit compares the events of watchers with those of a witness of etcd, and with the
// acknowledged writes.
type audit struct {
	routes   *Routes
	witness  *witness
	watchers []watcher
	load     *load
}

// verify checks everything up to a revision that was not checked before. Every watcher must
// reach the revision soon.
func (a *audit) verify(t *testing.T, upTo int64) {
	t.Helper()
	reaches := func(name string, r *recorder) {
		t.Helper()
		r.wait(t, fmt.Sprintf("%s at revision %d", name, upTo), func() bool { return r.revision >= upTo })
	}
	reaches("the witness", a.witness.recorder)
	happened, wrong := a.witness.take(upTo)
	if wrong != "" {
		t.Fatalf("the witness: %s", wrong)
	}
	a.load.verify(t, happened, upTo)
	for _, w := range a.watchers {
		reaches(w.name, w.recorder)
		got, wrong := w.take(upTo)
		w.mu.Lock()
		after := max(a.witness.from, w.resets[0])
		w.mu.Unlock()
		if wrong != "" {
			t.Errorf("%s: %s", w.name, wrong)
		}
		if diff := cmp.Diff(lines(happened, a.routes, w.tier, after), lines(got, a.routes, w.tier, after)); diff != "" {
			t.Errorf("%s: the events differ from etcd's history:\n%s", w.name, diff)
		}
	}
}

// load writes, and records the acknowledged writes.
type load struct {
	etcd *clientv3.Client
	// writers is their number, and every the pause of each between writes.
	writers int
	every   time.Duration

	writes, failures atomic.Int64
	silence          stopwatch // laps are acknowledgements

	mu           sync.Mutex
	acknowledged map[int64]string // keys and values by revision, guarded by mu

	// happened holds the events of the last verify, because an acknowledgement may arrive after
	// it.
	happened map[int64]string
}

// run writes until the context ends: small objects of two tiers, and large ones.
func (l *load) run(ctx context.Context) {
	large := fmt.Sprintf("%50000d", 0)
	var writing sync.WaitGroup
	for writer := range l.writers {
		writing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key, value := fmt.Sprintf("pods/ns/w%d-p%d", writer, i%50), fmt.Sprint(writer, " ", i)
				switch i % 30 {
				case 9:
					key = fmt.Sprintf("example.com/things/w%d-t%d", writer, i%7)
				case 19:
					key, value = fmt.Sprintf("configmaps/ns/w%d-c%d", writer, i%7), value+large
				}
				l.put(ctx, key, value)
				time.Sleep(l.every)
			}
		})
	}
	writing.Wait()
}

func (l *load) put(ctx context.Context, key, value string) {
	revision, err := tryPut(ctx, l.etcd, key, value)
	if err != nil {
		l.failures.Add(1)
		return
	}
	l.silence.lap()
	l.writes.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acknowledged[revision] = "/registry/" + key + "=" + value
}

// verify fails the test if an acknowledged write did not happen.
func (l *load) verify(t *testing.T, happened []kv.Event, upTo int64) {
	t.Helper()
	before := l.happened
	l.happened = map[int64]string{}
	for _, e := range happened {
		l.happened[e.Revision] = e.Key + "=" + string(e.Value)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for revision, write := range l.acknowledged {
		if revision > upTo {
			continue
		}
		seen := l.happened[revision]
		if seen == "" {
			seen = before[revision]
		}
		if seen != write {
			t.Errorf("acknowledged at %d: %.60q, seen %.60q", revision, write, seen)
		}
		delete(l.acknowledged, revision)
	}
}

// stopwatch measures the longest time between two laps.
type stopwatch struct {
	mu      sync.Mutex
	last    time.Time     // guarded by mu
	longest time.Duration // guarded by mu
}

func (s *stopwatch) lap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.last.IsZero() {
		s.longest = max(s.longest, now.Sub(s.last))
	}
	s.last = now
}

// lapped reports whether there was a lap after a time.
func (s *stopwatch) lapped(after time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.After(after)
}

// read returns the longest lap since the last read.
func (s *stopwatch) read() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest := s.longest
	s.longest = 0
	return longest
}

// resumer is a watcher that leaves and resumes, each time with another reader. It first calls
// Since for the time in between.
type resumer struct {
	*recorder
	config ReaderConfig
	// resources are those that the watcher watches.
	resources []string

	comebacks atomic.Int64

	// These belong to the goroutine of run.
	ctx    context.Context
	reader *Reader
	begun  bool // set by the reader's first reset
	missed bool // the changes in between are unknown
}

// run resumes until the context ends.
func (r *resumer) run(ctx context.Context) error {
	for stint := 0; ctx.Err() == nil; stint++ {
		if err := r.follow(ctx, time.Duration(2+stint%4)*time.Second); err != nil {
			return err
		}
		time.Sleep(time.Duration(stint%3) * 500 * time.Millisecond)
	}
	return nil
}

// follow watches with a new reader for a while.
func (r *resumer) follow(ctx context.Context, d time.Duration) (err error) {
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	if r.reader, err = NewReader(r.config); err != nil {
		return err
	}
	r.begun, r.missed = false, false
	time.AfterFunc(d, cancel)
	return r.reader.Run(r.ctx, r)
}

// Reset implements Sink.
func (r *resumer) Reset(revision int64) {
	r.mu.Lock()
	first, after := len(r.resets) == 0, r.revision
	r.mu.Unlock()
	if first || r.begun {
		r.recorder.Reset(revision)
	} else {
		r.catchUp(after, revision)
	}
	r.begun = true
}

// Apply implements Sink.
func (r *resumer) Apply(b kv.Batch) {
	if !r.missed {
		r.recorder.Apply(b)
	}
}

// catchUp calls Since for the time between two revisions, until the stint ends.
func (r *resumer) catchUp(after, upTo int64) {
	var events []kv.Event
	for _, resource := range r.resources {
		got, err := r.since(resource, after, upTo)
		if r.missed = err != nil; r.missed {
			return
		}
		events = append(events, got...)
	}
	slices.SortFunc(events, func(a, b kv.Event) int { return int(a.Revision - b.Revision) })
	r.recorder.Apply(kv.Batch{Events: events, Revision: upTo})
	r.comebacks.Add(1)
}

func (r *resumer) since(resource string, after, upTo int64) ([]kv.Event, error) {
	for {
		var events []kv.Event
		err := r.reader.Since(r.ctx, resource, after, upTo, func(e kv.Event) error {
			events = append(events, e)
			return nil
		})
		var compacted *kv.CompactedError
		if errors.As(err, &compacted) {
			r.mu.Lock()
			r.faults = append(r.faults, fmt.Sprintf("%s cannot be resumed after %d: %v", resource, after, err))
			r.mu.Unlock()
		}
		if err == nil || compacted != nil || r.ctx.Err() != nil {
			return events, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// connect connects to NATS as the services do.
func (f *fleet) connect(t *testing.T, urls ...string) *nats.Conn {
	t.Helper()
	conn, err := Connect(ConnectOptions{URLs: urls, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

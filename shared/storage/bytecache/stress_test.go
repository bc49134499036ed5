package bytecache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"triune.dev/shared/storage/kv"
)

// lockedEtcd is an etcd and event log for concurrent use. The value of each object has the
// revision at which it was written, so that a reader can verify what it sees: key i has the
// newest multiple of keys, plus i, that is not beyond the revision.
type lockedEtcd struct {
	keys     int64
	revision atomic.Int64
	floor    atomic.Int64
	// seen is the newest revision that a watcher has seen.
	seen atomic.Int64
}

// writtenAt returns the mod revision of key i at a revision.
func (o *lockedEtcd) writtenAt(i, revision int64) int64 { return revision - (revision-i)%o.keys }

func (o *lockedEtcd) key(i int64) string { return fmt.Sprintf("/s/%04d", i) }

func (o *lockedEtcd) List(_ context.Context, r kv.Range) (kv.Page, error) {
	page := kv.Page{Revision: o.revision.Load()}
	at := r.Revision
	if at == 0 {
		at = page.Revision
	}
	for i := range o.keys {
		key := o.key(i)
		if key < r.Start {
			continue
		}
		page.Count++
		if r.Limit == 0 || int64(len(page.KVs)) < r.Limit {
			written := o.writtenAt(i, at)
			page.KVs = append(page.KVs, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(strconv.FormatInt(written, 10)), ModRevision: written})
		}
	}
	return page, nil
}

func (o *lockedEtcd) RequestProgress(context.Context) error { return nil }

func (o *lockedEtcd) event(revision int64) kv.Event {
	return kv.Event{
		Kind: kv.Modified, Key: o.key(revision % o.keys), Revision: revision,
		Value:    []byte(strconv.FormatInt(revision, 10)),
		Previous: []byte(strconv.FormatInt(revision-o.keys, 10)),
	}
}

func (o *lockedEtcd) Since(_ context.Context, _ string, after, upTo int64, yield func(kv.Event) error) error {
	if floor := o.floor.Load(); after < floor {
		return &kv.CompactedError{Wanted: after, Oldest: floor}
	}
	for revision := after + 1; revision <= upTo; revision++ {
		if err := yield(o.event(revision)); err != nil {
			return err
		}
	}
	return nil
}

// TestConcurrentReaders checks with concurrent goroutines what TestHistories checks step by
// step. Cursors sleep here and must be woken.
func TestConcurrentReaders(t *testing.T) {
	last := int64(60_000)
	if testing.Short() {
		last = 15_000
	}
	o := &lockedEtcd{keys: 50}
	o.revision.Store(1000)
	space := New(Config{Origin: o, Feed: o, LogBytes: 30_000, SnapshotBytes: 100_000, FormBytes: 20_000})
	space.loadPage = 7
	cache, err := space.Cache("/s/", Options{
		Labels: func(e *Entry) (Attributes, error) {
			return Attributes{"last": string(e.Data()[len(e.Data())-1:])}, nil
		},
		Fields: func(e *Entry) (Attributes, error) {
			return Attributes{"last": string(e.Data()[len(e.Data())-1:])}, nil
		},
		OnInconsistent: func(key string, revision int64) { t.Errorf("%s at %d does not fit", key, revision) },
	})
	if err != nil {
		t.Fatal(err)
	}
	space.Reset(1000)
	ctx := t.Context()
	var group sync.WaitGroup
	var pushed atomic.Int64
	over, pokes := make(chan struct{}), make(chan struct{})
	go func() { // wakes some while they are woken
		defer close(pokes)
		for n := 0; ; n++ {
			select {
			case pokes <- struct{}{}:
			case <-over:
				return
			}
			for range n % 40 {
				runtime.Gosched()
			}
		}
	}()
	// The readers end when they have seen the last revision.
	for reader := range uint64(6) {
		group.Go(func() { watchToTheEnd(ctx, t, o, cache, rand.New(rand.NewPCG(reader, 5)), last) })
		group.Go(func() { readToTheEnd(ctx, t, o, cache, rand.New(rand.NewPCG(reader, 6)), last) })
		group.Go(func() { o.watchSome(ctx, t, cache, rand.New(rand.NewPCG(reader, 8)), last, pokes) })
		group.Go(func() { o.watchWithPusher(ctx, t, cache, rand.New(rand.NewPCG(reader, 9)), last, &pushed) })
	}
	r := rand.New(rand.NewPCG(7, 7))
	for at := o.revision.Load(); at < last; {
		to := at + 1 + r.Int64N(6)
		if to > last-10 {
			to = last // a batch that concerns everybody, whatever its interest
		}
		batch := kv.Batch{Revision: to}
		for revision := at + 1; revision <= to; revision++ {
			batch.Events = append(batch.Events, o.event(revision))
		}
		o.revision.Store(to) // etcd has it before the log says so
		if to < last && r.IntN(500) == 0 {
			o.floor.Store(to)
			space.Reset(to)
		} else {
			space.Apply(batch)
		}
		// Sometimes, and near the end until a push has succeeded, it waits for all to sleep.
		for (r.IntN(20) == 0 || to > last-3000 && pushed.Load() == 0) && o.seen.Load() < to {
			runtime.Gosched()
		}
		at = to
	}
	close(over)
	group.Wait()
	if used := space.Budget().Used(); used > 20_000 {
		t.Errorf("%d bytes of forms are cached", used)
	}
	if pushed.Load() == 0 {
		t.Error("nothing was pushed")
	}
}

// watchToTheEnd lists and watches, and starts again whenever history is gone.
func watchToTheEnd(ctx context.Context, t *testing.T, o *lockedEtcd, cache *Cache, r *rand.Rand, last int64) {
	for !t.Failed() {
		s, err := cache.Snapshot(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		// Some watches resume from before, some from a future revision.
		at := min(last-1, s.Revision-40+r.Int64N(50))
		cursor, err := cache.Cursor(ctx, at)
		if err != nil {
			t.Error(err)
			return
		}
		for calls := r.IntN(3000); calls > 0 || at >= last-3000; calls-- {
			changes, err := cursor.Next(ctx, nil)
			var gone *ExpiredError
			if errors.As(err, &gone) {
				break
			}
			if err != nil {
				t.Error(err)
				return
			}
			for _, c := range changes.List {
				if at++; c.Revision != at || string(c.Now.Data()) != strconv.FormatInt(at, 10) || string(c.Before.Data()) != strconv.FormatInt(at-o.keys, 10) {
					t.Errorf("change at %d with %s over %s, want %d", c.Revision, c.Now.Data(), c.Before.Data(), at)
					return
				}
			}
			if changes.Revision != at {
				t.Errorf("changes up to %d, Revision %d", at, changes.Revision)
				return
			}
			o.seen.Store(max(o.seen.Load(), at))
			if at >= last {
				return
			}
		}
	}
}

// readToTheEnd reads in all other ways.
func readToTheEnd(ctx context.Context, t *testing.T, o *lockedEtcd, cache *Cache, r *rand.Rand, last int64) {
	kind := NewFormID()
	for !t.Failed() {
		s, err := cache.Snapshot(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if r.IntN(3) == 0 {
			cache.Pin(s)
		}
		if older, ok := cache.SnapshotAt(s.Revision - r.Int64N(20)); ok {
			s = older
		}
		i := int64(0)
		s.Ascend("", func(e *Entry) bool {
			if want := o.writtenAt(i, s.Revision); e.Revision != want || e.Key != o.key(i) {
				t.Errorf("%s at %d was written at %d, want %d", e.Key, s.Revision, e.Revision, want)
				return false
			}
			i++
			return true
		})
		e, revision, err := cache.Get(ctx, o.key(r.Int64N(o.keys)))
		if err != nil || e == nil || e.Revision > revision || e.Revision <= revision-o.keys {
			t.Errorf("get at %d: %+v, %v", revision, e, err)
			return
		}
		form, err := e.Form(cache.space.Budget(), kind, func(e *Entry) ([]byte, error) { return append([]byte("form of "), e.Data()...), nil })
		if err != nil || strings.TrimPrefix(string(form), "form of ") != string(e.Data()) {
			t.Errorf("form of %s: %s, %v", e.Data(), form, err)
		}
		digit := strconv.Itoa(r.IntN(10))
		selection, err := cache.Select(ctx, Term{Key: "last", Values: []string{digit}})
		if err != nil || !selection.Indexed || int64(len(selection.Entries)) != o.keys/10 {
			t.Errorf("%d entries end with %s: %v", len(selection.Entries), digit, err)
			return
		}
		for _, e := range selection.Entries {
			if !strings.HasSuffix(string(e.Data()), digit) || e.Revision > selection.Revision || e.Revision <= selection.Revision-o.keys {
				t.Errorf("%s at %d ends with %s", e.Data(), selection.Revision, digit)
			}
		}
		if s.Revision >= last-20 && cache.Space().Revision() >= last {
			return
		}
	}
}

package readindex_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"triune.dev/shared/storage/readindex"
)

// slowEtcd delays the state at the time of a request, so that a response to a later reader
// is detected.
type slowEtcd struct {
	mu       sync.Mutex
	revision int64
	mods     map[string]int64
	requests atomic.Int64
	largest  atomic.Int64
	fail     error
}

func (e *slowEtcd) ModRevisions(ctx context.Context, _ string, keys []string) ([]int64, int64, error) {
	e.requests.Add(1)
	e.largest.Store(max(e.largest.Load(), int64(len(keys))))
	e.mu.Lock()
	revision, err := e.revision, e.fail
	mods := make([]int64, len(keys))
	for i, k := range keys {
		mods[i] = e.mods[k]
	}
	e.mu.Unlock()
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	return mods, revision, err
}

func (e *slowEtcd) write(key string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.revision++
	e.mods[key] = e.revision
	return e.revision
}

// A read reflects every write that was acknowledged before it began.
func TestResponsesAreNotOlderThanTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &slowEtcd{mods: map[string]int64{}}
		p := readindex.New(etcd, "/")
		var readers sync.WaitGroup
		for i := range 400 {
			time.Sleep(50 * time.Microsecond)
			key := fmt.Sprintf("k%d", i%7)
			least := etcd.write(key)
			readers.Go(func() {
				c, err := p.Confirm(t.Context(), key)
				if err != nil || c.ModRevision < least || c.Revision < least {
					t.Errorf("after revision %d: %+v, %v", least, c, err)
				}
			})
			readers.Go(func() {
				if revision, err := p.Revision(t.Context()); err != nil || revision < least {
					t.Errorf("after revision %d: %d, %v", least, revision, err)
				}
			})
		}
		readers.Wait()
		if requests := etcd.requests.Load(); requests > 100 {
			t.Errorf("800 readers caused %d requests", requests)
		}
	})
}

// etcd refuses transactions of more than 128 operations.
func TestRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &slowEtcd{mods: map[string]int64{}}
		for i := range 1000 {
			etcd.write(fmt.Sprintf("k%d", i))
		}
		p := readindex.New(etcd, "/")
		var readers sync.WaitGroup
		for i := range 1000 {
			readers.Go(func() {
				if c, err := p.Confirm(t.Context(), fmt.Sprintf("k%d", i)); err != nil || c.ModRevision != int64(i+1) {
					t.Errorf("k%d: %+v, %v", i, c, err)
				}
			})
		}
		readers.Wait()
		if largest := etcd.largest.Load(); largest != 128 {
			t.Errorf("the largest request had %d keys, want 128", largest)
		}
	})
}

func TestErrorsReachEveryReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no leader")
		p := readindex.New(&slowEtcd{fail: broken}, "/")
		var readers sync.WaitGroup
		for range 10 {
			readers.Go(func() {
				if _, err := p.Revision(t.Context()); !errors.Is(err, broken) {
					t.Errorf("got %v, want %v", err, broken)
				}
			})
		}
		readers.Wait()
	})
}

// A reader that gives up does not affect other readers.
func TestReaderGivesUpAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &slowEtcd{mods: map[string]int64{}, revision: 5}
		p := readindex.New(etcd, "/")
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		readers.Go(func() {
			if revision, err := p.Revision(t.Context()); err != nil || revision != 5 {
				t.Errorf("the patient reader got %d, %v", revision, err)
			}
		})
		readers.Go(func() {
			if _, err := p.Revision(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the context's error", err)
			}
		})
		synctest.Wait()
		cancel()
		readers.Wait()
	})
}

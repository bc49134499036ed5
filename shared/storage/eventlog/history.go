package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"triune.dev/shared/storage/kv"
)

// Since calls yield for the past changes of all keys that begin with prefix, after one revision
// and up to another, which the sink must have reached. The changes come from the stream as far
// as it proves to be complete, and then from etcd. The error is a *kv.CompactedError if neither
// has them, an error of yield, or the reason why neither answered.
//
// It is safe for concurrent use. Concurrent calls for the same resource share one read of the
// stream. Only a few reads run at once; the others wait. The event passed to yield is shared
// and must not be changed.
func (r *Reader) Since(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	if at := r.revision.Load(); upTo > at {
		return fmt.Errorf("history of %s up to revision %d: the feed is at %d", prefix, upTo, at)
	}
	route, one := r.cfg.Routes.PrefixRoute(prefix)
	for r.js != nil && one && after < upTo {
		w, err := r.history.window(ctx, route.Subject, after, upTo)
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil || w.upTo <= after {
			break // etcd may have it
		}
		for _, e := range w.events {
			if e.Revision <= after || e.Revision > upTo || !strings.HasPrefix(e.Key, prefix) {
				continue
			}
			if err := yield(e); err != nil {
				return err
			}
		}
		after = w.upTo
	}
	if after >= upTo {
		return nil
	}
	return r.sinceEtcd(ctx, prefix, after, upTo, yield)
}

// sinceEtcd is Since with etcd as the only source.
func (r *Reader) sinceEtcd(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	release, err := r.history.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := kv.New(r.cfg.Etcd)
	s := client.Watch(ctx, kv.WatchOptions{Key: prefix, Prefix: true, After: after})
	again := time.NewTicker(progressRetry)
	defer again.Stop()
	for {
		select {
		case resp, ok := <-s.C():
			if !ok {
				return errors.Join(errors.New("history: watch ended"), ctx.Err())
			}
			b, err := s.Accept(resp)
			if err != nil {
				return err
			}
			for _, e := range b.Events {
				if e.Revision > upTo {
					return nil
				}
				if !r.wants(e.Key) {
					continue
				}
				if err := yield(e); err != nil {
					return err
				}
			}
			if b.Revision >= upTo {
				return nil
			}
		case <-again.C:
			if err := client.RequestProgress(ctx); err != nil {
				return fmt.Errorf("history: %w", err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errNoHistory means that the stream cannot prove a part of history.
var errNoHistory = errors.New("not in the stream")

// historyCache reads windows of a stream's history and shares them between concurrent calls of
// Since.
type historyCache struct {
	r     *Reader
	slots chan struct{}

	mu       sync.Mutex
	windows  map[string]*window // by subject, guarded by mu
	retained []retainedWindow   // finished windows, oldest first; guarded by mu
	bytes    int                // size of retained; guarded by mu
}

// retainedWindow is a finished window that later calls may use.
type retainedWindow struct {
	subject string
	window  *window
}

// window is the history of one subject between two revisions. It is read once and shared as
// long as it is retained.
type window struct {
	after  int64
	wanted int64         // the upTo that was asked for
	done   chan struct{} // closed when the fields below are set
	upTo   int64         // events is complete up to this revision
	events []kv.Event
	bytes  int
	err    error
}

const (
	// windowTTL is how long a finished window is retained.
	windowTTL = 5 * time.Second
	// maxWindowBytes bounds one window, and maxRetainedBytes all retained windows.
	maxWindowBytes   = 32 << 20
	maxRetainedBytes = 64 << 20
)

func newHistoryCache(r *Reader, limit int) *historyCache {
	return &historyCache{r: r, slots: make(chan struct{}, limit), windows: map[string]*window{}}
}

// acquire waits for a slot to read history.
func (h *historyCache) acquire(ctx context.Context) (release func(), err error) {
	select {
	case h.slots <- struct{}{}:
		return func() { <-h.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// window returns a finished window that begins at or before after.
func (h *historyCache) window(ctx context.Context, subject string, after, upTo int64) (*window, error) {
	h.mu.Lock()
	w := h.windows[subject]
	if w == nil || w.after > after || w.wanted < upTo || w.finished() && w.upTo <= after {
		w = &window{after: after, wanted: upTo, done: make(chan struct{})}
		h.windows[subject] = w
		h.mu.Unlock()
		h.load(ctx, subject, w)
		return w, w.err
	}
	h.mu.Unlock()
	select {
	case <-w.done:
		if errors.Is(w.err, context.Canceled) || errors.Is(w.err, context.DeadlineExceeded) {
			// The call that read the window was canceled; read it again.
			w = &window{after: after, wanted: upTo, done: make(chan struct{})}
			h.load(ctx, subject, w)
		}
		return w, w.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *window) finished() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// load reads a window and retains it for a while.
func (h *historyCache) load(ctx context.Context, subject string, w *window) {
	defer func() {
		close(w.done)
		h.retain(subject, w)
	}()
	release, err := h.acquire(ctx)
	if err != nil {
		w.err = err
		return
	}
	defer release()
	s := scan{r: h.r, subject: subject, after: w.after, upTo: w.wanted}
	w.err = s.run(ctx)
	w.upTo, w.events, w.bytes = s.proven, s.events, s.bytes
}

// retain keeps a window for later calls, unless it failed or there is no room.
func (h *historyCache) retain(subject string, w *window) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retained = append(h.retained, retainedWindow{subject, w})
	h.bytes += w.bytes
	if w.err != nil {
		h.dropLocked(w)
		return
	}
	for h.bytes > maxRetainedBytes {
		h.dropLocked(h.retained[0].window)
	}
	time.AfterFunc(windowTTL, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.dropLocked(w)
	})
}

func (h *historyCache) dropLocked(w *window) {
	i := slices.IndexFunc(h.retained, func(k retainedWindow) bool { return k.window == w })
	if i < 0 {
		return
	}
	if subject := h.retained[i].subject; h.windows[subject] == w {
		delete(h.windows, subject)
	}
	h.retained = slices.Delete(h.retained, i, i+1)
	h.bytes -= w.bytes
}

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"triune.dev/shared/etcdstore/kv"
)

// Since tells the past: the changes of the keys that begin with prefix, after
// one revision and up to another, which the sink must have already. They come
// from the stream as far as it proves that nothing is missing, then from etcd.
// The error is a *kv.CompactedError when neither has them, that of yield when it
// has one, or what kept both from answering.
//
// It is safe for concurrent use. Those who want the same resource at the same
// time share one reading of the stream, and only a few readings are under way at
// once; the others wait. What yield is given is shared and must not be changed.
func (r *Reader) Since(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	if at := r.revision.Load(); upTo > at {
		return fmt.Errorf("history of %s until revision %d: the feed is only at %d", prefix, upTo, at)
	}
	route, one := r.cfg.Routes.OfPrefix(prefix)
	for r.js != nil && one && after < upTo {
		w, err := r.history.window(ctx, route.Subject, after, upTo)
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil || w.upTo <= after {
			break // etcd perhaps has it
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

// sinceEtcd is Since from etcd alone.
func (r *Reader) sinceEtcd(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	release, err := r.history.admit(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := kv.New(r.cfg.Etcd)
	s := client.Watch(ctx, kv.WatchOptions{Key: prefix, Prefix: true, After: after})
	again := time.NewTicker(askInterval)
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

// errNoHistory means that the stream does not prove what it would have to tell.
var errNoHistory = errors.New("not in the stream")

// histories reads the past of a stream for those who resume.
type histories struct {
	r      *Reader
	places chan struct{}

	mu      sync.Mutex
	windows map[string]*window // by subject, guarded by mu
	done    []finishedWindow   // those that are read, oldest first; guarded by mu
	bytes   int                // of done, guarded by mu
}

// finishedWindow is a window that is kept for others.
type finishedWindow struct {
	subject string
	window  *window
}

// window is the history of one subject between two revisions, read once for all
// that ask for it while it is kept.
type window struct {
	after  int64
	wanted int64         // upTo, as far as it was asked for
	done   chan struct{} // closed when the rest is there
	upTo   int64         // after it the history goes on, or is not told
	events []kv.Event
	bytes  int
	err    error
}

const (
	// windowLife is how long a window is kept for others after it was read.
	windowLife = 5 * time.Second
	// windowBytes bounds what one window holds, and finishedBytes what all windows do that
	// are kept for others.
	windowBytes   = 32 << 20
	finishedBytes = 64 << 20
)

func newHistories(r *Reader, limit int) *histories {
	return &histories{r: r, places: make(chan struct{}, limit), windows: map[string]*window{}}
}

// admit waits for a place among the readers of history.
func (h *histories) admit(ctx context.Context) (release func(), err error) {
	select {
	case h.places <- struct{}{}:
		return func() { <-h.places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// window returns a finished window that begins at or before after.
func (h *histories) window(ctx context.Context, subject string, after, upTo int64) (*window, error) {
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
			// He who read it gave up; that is no answer for others.
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

// load reads a window and keeps it for a while.
func (h *histories) load(ctx context.Context, subject string, w *window) {
	defer func() {
		close(w.done)
		h.keep(subject, w)
	}()
	release, err := h.admit(ctx)
	if err != nil {
		w.err = err
		return
	}
	defer release()
	s := scan{r: h.r, subject: subject, after: w.after, upTo: w.wanted}
	w.err = s.run(ctx)
	w.upTo, w.events, w.bytes = s.proven, s.events, s.bytes
}

// keep leaves a window to others for a while, unless there is no room or an error in
// it.
func (h *histories) keep(subject string, w *window) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done = append(h.done, finishedWindow{subject, w})
	h.bytes += w.bytes
	if w.err != nil {
		h.dropLocked(w)
		return
	}
	for h.bytes > finishedBytes {
		h.dropLocked(h.done[0].window)
	}
	time.AfterFunc(windowLife, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.dropLocked(w)
	})
}

func (h *histories) dropLocked(w *window) {
	i := slices.IndexFunc(h.done, func(k finishedWindow) bool { return k.window == w })
	if i < 0 {
		return
	}
	if subject := h.done[i].subject; h.windows[subject] == w {
		delete(h.windows, subject)
	}
	h.done = slices.Delete(h.done, i, i+1)
	h.bytes -= w.bytes
}

package configmaps

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"triune.dev/tests/faults/history"
)

// Exercise lets clients send random requests until ctx is done, each client one after
// another and all clients concurrently, and records them in h. Every client has its own
// random numbers from the seed; the answers depend on timing.
func Exercise(ctx context.Context, h *history.History, seed uint64, clients []*Client) error {
	g, running := errgroup.WithContext(context.WithoutCancel(ctx))
	for i, c := range clients {
		g.Go(func() error {
			w := worker{client: c, id: i, history: h, random: rand.New(rand.NewPCG(seed, uint64(i)))}
			for ctx.Err() == nil && running.Err() == nil {
				if err := w.once(running); err != nil {
					return fmt.Errorf("client %d: %w", i, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// worker is a client of Exercise.
type worker struct {
	client  *Client
	id      int
	history *history.History
	random  *rand.Rand

	written int
	// seen is the last known revision of each key.
	seen [history.MaxKeys]int64
}

// once sends one request.
func (w *worker) once(ctx context.Context) error {
	r := w.draw()
	sent := w.history.Now()
	a, err := w.client.Do(ctx, r)
	if err != nil {
		return err
	}
	if a.Result == history.Refused {
		return wait(ctx, w.client.Rest) // no outcome; pause
	}
	w.history.Add(w.id, r, sent, a)
	if a.Result == history.Unknown {
		return wait(ctx, w.client.Rest)
	}
	if a.Result != history.Done {
		return nil
	}
	switch r.Verb {
	case history.List:
		for key, item := range a.Items {
			w.seen[key] = item.Revision
		}
	case history.Delete:
	default:
		w.seen[r.Key] = a.Item.Revision
	}
	return nil
}

// draw chooses a request. Preconditions are what the worker has seen last, which may be
// outdated.
func (w *worker) draw() history.Request {
	r := history.Request{Key: w.random.IntN(history.MaxKeys)}
	dice := w.random.IntN(100)
	switch {
	case dice < 30:
		return history.Request{Verb: history.Get, Key: r.Key}
	case dice < 48:
		return history.Request{Verb: history.List}
	case dice < 64:
		r.Verb = history.Create
	case dice < 80:
		r.Verb, r.Revision = history.Update, w.seen[r.Key]
	case dice < 90:
		r.Verb = history.Patch
	default:
		if r.Verb = history.Delete; w.random.IntN(2) == 0 {
			r.Revision = w.seen[r.Key]
		}
		return r
	}
	if r.Verb == history.Update && r.Revision == 0 {
		r.Verb = history.Create // an update needs a revision
	}
	w.written++
	r.Value = fmt.Sprintf("%d-%d", w.id, w.written)
	return r
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

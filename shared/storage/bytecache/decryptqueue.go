package bytecache

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"triune.dev/shared/storage/kv"
)

// decryptTimeout bounds the decryption of one batch of changes. Entries that could not be
// decrypted by then are stored with the error; see RetryDecrypt.
const decryptTimeout = 10 * time.Second

// queue holds the changes of a cache with Options.SlowDecrypt. It is guarded by the cache's
// mu.
type queue struct {
	batches [][]kv.Event
	bytes   int64
	// running reports whether a goroutine is working on the queue.
	running bool
	// progressed, if not nil, is closed when the next batch has been applied or dropped.
	progressed chan struct{}
}

// first returns the revision of the oldest queued change.
func (q *queue) first() (revision int64, waiting bool) {
	if len(q.batches) == 0 {
		return 0, false
	}
	return q.batches[0][0].Revision, true
}

func (q *queue) push(events []kv.Event) {
	q.batches = append(q.batches, events)
	q.bytes += sizeOf(events)
}

func (q *queue) pop() {
	q.bytes -= sizeOf(q.batches[0])
	q.batches[0] = nil
	q.batches = q.batches[1:]
	q.notify()
}

func (q *queue) clear() {
	q.batches, q.bytes = nil, 0
	q.notify()
}

func (q *queue) notify() {
	if q.progressed != nil {
		close(q.progressed)
		q.progressed = nil
	}
}

func sizeOf(events []kv.Event) (size int64) {
	for _, e := range events {
		size += int64(len(e.Key) + len(e.Value))
	}
	return size
}

// enqueue is receive for changes that must be decrypted first. If the queue exceeds the
// share of a log the cache drops it and reads its keys again; the cursors lose no changes,
// because they read from history what the log does not have. It returns the wakeups to
// fire.
func (c *Cache) enqueue(events []kv.Event) []*wakeup {
	if len(events) == 0 {
		return nil
	}
	// The events are borrowed from the event log.
	own := make([]kv.Event, len(events))
	for i, e := range events {
		own[i] = kv.Event{Kind: e.Kind, Key: strings.Clone(e.Key), Revision: e.Revision, Value: bytes.Clone(e.Value)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == idle {
		return nil
	}
	c.queue.push(own)
	if c.queue.bytes > c.space.logs.perCache {
		return c.reloadLocked()
	}
	if !c.queue.running {
		c.queue.running = true
		go c.drain()
	}
	return nil
}

// drain decrypts and applies the queued batches until the queue is empty.
func (c *Cache) drain() {
	for c.decryptNext() {
	}
}

// decryptNext decrypts and applies the oldest queued batch. It returns false if there is
// none.
func (c *Cache) decryptNext() bool {
	c.mu.Lock()
	if len(c.queue.batches) == 0 {
		c.queue.running = false
		c.mu.Unlock()
		return false
	}
	events, epoch := c.queue.batches[0], c.epoch
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), decryptTimeout)
	changes := c.prepare(ctx, events, owned)
	cancel()

	var wakeups []*wakeup
	c.mu.Lock()
	if c.epoch == epoch { // otherwise the queue was cleared
		c.queue.pop()
		wakeups = c.applyLocked(changes, max(c.revisionLocked(), events[len(events)-1].Revision))
	}
	c.mu.Unlock()
	c.space.trimLogs()
	fireAll(wakeups)
	return true
}

// decryptError is the error of a stored value that could not be decrypted.
type decryptError struct {
	error
	stored []byte
}

func (e *decryptError) Unwrap() error { return e.error }

// RetryDecrypt tries to decrypt an entry of this cache that has an Err again. If that
// succeeds the failure is over, and the cache reads its keys again when it is next needed.
// Its cursors continue.
func (c *Cache) RetryDecrypt(ctx context.Context, e *Entry) {
	var failed *decryptError
	if !errors.As(e.Err, &failed) {
		return
	}
	if _, _, err := c.options.Decrypt(ctx, e.Key, failed.stored); err != nil {
		return
	}
	c.mu.Lock()
	var wakeups []*wakeup
	if c.phase == live && c.getLocked(e.Key) == e {
		wakeups = c.reloadLocked()
	}
	c.mu.Unlock()
	fireAll(wakeups)
}

// reloadLocked discards everything, but no reset is recorded, so every cursor continues. It
// returns the wakeups to fire.
func (c *Cache) reloadLocked() []*wakeup { return c.clearLocked() }

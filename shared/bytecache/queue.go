package bytecache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"triune.dev/shared/etcdstore/kv"
)

// openPatience bounds the decryption of the changes of one batch. What could not be
// decrypted by then is held as it is, with the error; see Reopen.
const openPatience = 10 * time.Second

// queue holds the changes of a cache that decrypts them on a goroutine of its own. It is
// guarded by the cache's mu.
type queue struct {
	batches [][]kv.Event
	bytes   int64
	// running: a goroutine is at work on it.
	running bool
	// moved, if not nil, is closed when the next batch has been applied or dropped.
	moved chan struct{}
}

// first returns the revision of the oldest change that waits.
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
	q.move()
}

func (q *queue) clear() {
	q.batches, q.bytes = nil, 0
	q.move()
}

func (q *queue) move() {
	if q.moved != nil {
		close(q.moved)
		q.moved = nil
	}
}

func sizeOf(events []kv.Event) (size int64) {
	for _, e := range events {
		size += int64(len(e.Key) + len(e.Value))
	}
	return size
}

// enqueue is take for changes that must first be decrypted. If more of them wait than
// logShare, the cache drops them and reads its keys again; no cursor loses anything,
// for what the log does not have is read from history. It returns the alarms to ring.
func (c *Cache) enqueue(events []kv.Event) []*alarm {
	if len(events) == 0 {
		return nil
	}
	// The buffers of the event log are not ours to keep.
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
	if c.queue.bytes > c.space.logs.share {
		return c.reloadLocked()
	}
	if !c.queue.running {
		c.queue.running = true
		go c.drain()
	}
	return nil
}

// drain decrypts and applies what waits, and ends when nothing does.
func (c *Cache) drain() {
	for c.decryptNext() {
	}
}

// decryptNext decrypts and applies the oldest batch that waits. It returns false when
// none does.
func (c *Cache) decryptNext() bool {
	c.mu.Lock()
	if len(c.queue.batches) == 0 {
		c.queue.running = false
		c.mu.Unlock()
		return false
	}
	events, era := c.queue.batches[0], c.era
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	changes := c.prepare(ctx, events, owned)
	cancel()

	var asleep []*alarm
	c.mu.Lock()
	if c.era == era { // or the queue is another one
		c.queue.pop()
		asleep = c.applyLocked(changes, max(c.revisionLocked(), events[len(events)-1].Revision))
	}
	c.mu.Unlock()
	c.space.trimLogs()
	ringAll(asleep)
	return true
}

// Await blocks until everything up to revision is in this cache. It fails when the
// context is done.
func (c *Cache) Await(ctx context.Context, revision int64) error {
	if err := c.space.Await(ctx, revision); err != nil {
		return err
	}
	for {
		c.mu.Lock()
		if c.revisionLocked() >= revision {
			c.mu.Unlock()
			return nil
		}
		if _, waiting := c.queue.first(); !waiting {
			c.mu.Unlock() // an older etcd took the place of the one that was at revision
			return c.space.Await(ctx, revision)
		}
		if c.queue.moved == nil {
			c.queue.moved = make(chan struct{})
		}
		moved := c.queue.moved
		c.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("wait for revision %d of %s: %w", revision, c.prefix, ctx.Err())
		}
	}
}

// sealedError is the error of a stored value that could not be decrypted.
type sealedError struct {
	error
	stored []byte
}

func (e *sealedError) Unwrap() error { return e.error }

// Reopen tries once more to decrypt an entry of this cache that has an Err. If it can be
// decrypted now, whatever failed is over, and the cache reads its keys again when it is
// next needed; its cursors go on.
func (c *Cache) Reopen(ctx context.Context, e *Entry) {
	var failed *sealedError
	if !errors.As(e.Err, &failed) {
		return
	}
	if _, _, err := c.options.Open(ctx, e.Key, failed.stored); err != nil {
		return
	}
	c.mu.Lock()
	var asleep []*alarm
	if c.phase == live && c.getLocked(e.Key) == e {
		asleep = c.reloadLocked()
	}
	c.mu.Unlock()
	ringAll(asleep)
}

// reloadLocked forgets everything but how far back history reaches, so that every cursor
// goes on. It returns the alarms to ring.
func (c *Cache) reloadLocked() []*alarm { return c.emptyLocked() }

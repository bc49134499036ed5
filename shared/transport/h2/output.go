package h2

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// outputLimit is the size in bytes at which the output is written: four records.
	outputLimit = 4 * recordSize
	// recordSize is the maximum payload of a TLS record (RFC 8446, section 5.1). A DATA frame
	// with its header fills at most one record.
	recordSize = 16 << 10
	// smallOutput is the size in bytes below which a writer yields to other goroutines first.
	smallOutput = 4 << 10
	// flushDelay is how long unflushed data waits for more.
	flushDelay = time.Millisecond
	// tryWriteLimit is the output size up to which TryWrite succeeds: a few events for a
	// hundred watches of a connection.
	tryWriteLimit = 8 * outputLimit
)

// Buffers of the output. A connection holds one while it has data to write; most outputs are
// small. The pools hold pointers, which do not allocate.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 2*smallOutput); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, outputLimit+recordSize); return &b }}
)

func getBuffer(size int) *[]byte {
	if size <= 2*smallOutput {
		return smallBuffers.Get().(*[]byte)
	}
	return largeBuffers.Get().(*[]byte)
}

func putBuffer(b *[]byte) {
	*b = (*b)[:0]
	switch c := cap(*b); {
	case c < outputLimit:
		smallBuffers.Put(b)
	case c <= 2*outputLimit:
		largeBuffers.Put(b)
	}
}

// pendingLocked returns the number of bytes in the output.
func (c *conn) pendingLocked() int {
	n := c.fullOutputBytes
	if c.output != nil {
		n += len(*c.output)
	}
	return n
}

// nextOutputLocked returns and removes the next buffer to write.
func (c *conn) nextOutputLocked() *[]byte {
	if len(c.fullOutputs) == 0 {
		out := c.output
		c.output = nil
		return out
	}
	out := c.fullOutputs[0]
	c.fullOutputBytes -= len(*out)
	if c.fullOutputs = c.fullOutputs[1:]; len(c.fullOutputs) == 0 {
		c.fullOutputs = nil
	}
	return out
}

// reserveLocked returns the output with room for n more bytes.
func (c *conn) reserveLocked(n int) *[]byte {
	switch {
	case c.output == nil:
		c.output = getBuffer(n)
	case cap(*c.output)-len(*c.output) < n && cap(*c.output) < outputLimit:
		larger := getBuffer(outputLimit)
		*larger = append(*larger, *c.output...)
		putBuffer(c.output)
		c.output = larger
	}
	return c.output
}

// flushLocked writes the output, unless another goroutine is writing, which then writes the new
// data as well. It unlocks the mutex while it writes.
func (c *conn) flushLocked() {
	if c.writing || c.pendingLocked() == 0 || c.err != nil {
		return
	}
	c.writing = true
	c.yieldLocked()
	c.writeLocked()
	if c.pendingLocked() > 0 && (c.err == nil || c.writeAfterErr) {
		go c.drain() // do not keep this goroutine for the data of others
		return
	}
	c.writing = false
}

// flushAsyncLocked is flushLocked for callers that must not block.
func (c *conn) flushAsyncLocked() {
	if c.writing || c.pendingLocked() == 0 || c.err != nil {
		return
	}
	c.writing = true
	go c.drain()
}

// scheduleFlushLocked flushes after a delay: a handler that has not flushed may write more, or
// may be waiting for something else.
func (c *conn) scheduleFlushLocked() {
	switch {
	case c.flushScheduled || c.writing || c.pendingLocked() == 0 || c.err != nil:
		return
	case c.flushTimer == nil:
		c.flushTimer = time.AfterFunc(flushDelay, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.flushScheduled = false
			c.flushLocked()
		})
	default:
		c.flushTimer.Reset(flushDelay)
	}
	c.flushScheduled = true
}

// drain writes until the output is empty. The caller has set writing.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.pendingLocked() > 0 && (c.err == nil || c.writeAfterErr) {
		c.yieldLocked()
		c.writeLocked()
	}
	c.writing = false
}

// yieldLocked lets runnable goroutines append to a small output first: one change wakes hundreds
// of watches, and many of them share a connection. An idle server has no runnable goroutines, so
// this costs nothing.
func (c *conn) yieldLocked() {
	if len(c.streams) == 0 || c.pendingLocked() >= smallOutput {
		return
	}
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
}

// writeLocked writes one buffer of the output. The caller has set writing.
func (c *conn) writeLocked() {
	out := c.nextOutputLocked()
	c.controlBytes = min(c.controlBytes, c.pendingLocked())
	c.wakeSendersLocked()
	c.mu.Unlock()
	err := c.write(*out)
	putBuffer(out)
	c.mu.Lock()
	if err != nil {
		c.failLocked(err)
	}
	c.wakeSendersLocked()
}

// write writes p, with a single system call for all TLS records if the connection comes from a
// [Listener].
func (c *conn) write(p []byte) error {
	if c.corked == nil || len(p) <= recordSize {
		_, err := c.net.Write(p)
		return err
	}
	c.corked.cork()
	_, err := c.net.Write(p)
	if failed := c.corked.uncork(); err == nil {
		err = failed
	}
	return err
}

// responsePart is a part of a response to send at once.
type responsePart struct {
	headers        []hpack.HeaderField // nil if already sent
	interim        bool                // headers are informational (RFC 9110, section 15.2)
	buffered, data []byte              // the body: buffered before data
	trailers       []hpack.HeaderField
	end            bool // end of the response
	flush          bool // flush to the network
}

// send appends frames to the output. It waits for flow control and for output room, and may
// write the output.
func (s *stream) send(p responsePart) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.errLocked(); err != nil {
		return err
	}
	if c.exceedsPeerLimitLocked(p.headers) || c.exceedsPeerLimitLocked(p.trailers) {
		c.resetStreamLocked(s.id, http2.ErrCodeInternal)
		c.flushAsyncLocked()
		return s.err
	}
	left := len(p.buffered) + len(p.data)
	endsWithData := p.end && len(p.trailers) == 0
	ended := endsWithData && left == 0 && p.headers != nil
	if p.headers != nil {
		if err := s.waitForHeaderRoomLocked(); err != nil {
			return err
		}
		c.appendHeadersLocked(s.id, p.headers, ended)
		s.response.headersSent = !p.interim
	}
	for left > 0 {
		n, err := s.waitForWindowLocked(left)
		if err != nil {
			return err
		}
		left -= n
		ended = endsWithData && left == 0
		p.buffered, p.data = c.appendDataLocked(s, p.buffered, p.data, n, ended)
		if left == 0 || c.sendWindow <= 0 || c.pendingLocked() >= outputLimit {
			s.leaveSendQueueLocked()
		}
		if left > 0 && c.pendingLocked() >= outputLimit {
			c.flushLocked()
			if err := s.errLocked(); err != nil {
				return err
			}
		}
	}
	switch {
	case p.end && len(p.trailers) > 0:
		if err := s.waitForHeaderRoomLocked(); err != nil {
			return err
		}
		c.appendHeadersLocked(s.id, p.trailers, true)
	case p.end && !ended:
		out := c.reserveLocked(frameHeader)
		*out = appendFrameHeader(*out, 0, http2.FrameData, http2.FlagDataEndStream, s.id)
	}
	if p.end {
		s.responseSentLocked()
	}
	if p.flush || c.pendingLocked() >= outputLimit {
		c.flushLocked()
	} else {
		c.scheduleFlushLocked()
	}
	return nil
}

// trySend appends pieces of size bytes, or returns false if it would have to wait.
func (s *stream) trySend(pieces [][]byte, size int) bool {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.errLocked() != nil || len(c.sendQueue) > 0 || int64(size) > min(s.sendWindowLocked(), c.sendWindow) || c.pendingLocked()+size > tryWriteLimit {
		return false
	}
	if c.output != nil && len(*c.output)+size > outputLimit {
		c.fullOutputs = append(c.fullOutputs, c.output)
		c.fullOutputBytes += len(*c.output)
		c.output = nil
	}
	for _, p := range pieces {
		for len(p) > 0 {
			n := min(len(p), int(c.maxFrameSize), recordSize-frameHeader)
			p, _ = c.appendDataLocked(s, p, nil, n, false)
		}
	}
	if c.pendingLocked() >= outputLimit/2 {
		c.flushAsyncLocked() // make room for the next streams
	}
	return true
}

// Flush starts to write the output and does not wait for it.
func (c *conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushAsyncLocked()
}

// waitForWindowLocked waits until part of want bytes may be sent, and returns how many.
func (s *stream) waitForWindowLocked(want int) (int, error) {
	c := s.conn
	for {
		if err := s.errLocked(); err != nil {
			s.leaveSendQueueLocked()
			return 0, err
		}
		room := c.sendWindow > 0 && c.pendingLocked() < outputLimit
		window := s.sendWindowLocked()
		if room && window > 0 && (len(c.sendQueue) == 0 || c.sendQueue[0] == s) {
			return int(min(int64(want), window, c.sendWindow, int64(c.maxFrameSize), recordSize-frameHeader)), nil
		}
		// The client opens its window only after it has received the output.
		if (!room || window <= 0) && !c.writing && c.pendingLocked() > 0 {
			c.flushLocked()
			continue
		}
		if window <= 0 {
			s.leaveSendQueueLocked()
			c.awaitingWindow[s] = struct{}{}
		} else if !s.inSendQueue {
			s.inSendQueue = true
			c.sendQueue = append(c.sendQueue, s)
		}
		s.wake.Wait()
		delete(c.awaitingWindow, s)
	}
}

// leaveSendQueueLocked removes the stream from the send queue and wakes the next one.
func (s *stream) leaveSendQueueLocked() {
	c := s.conn
	if s.inSendQueue {
		s.inSendQueue = false
		if i := slices.Index(c.sendQueue, s); i >= 0 {
			c.sendQueue = slices.Delete(c.sendQueue, i, i+1)
		}
	}
	c.wakeSendersLocked()
}

// wakeSendersLocked wakes the first stream of the send queue if it can send, and all streams that
// wait for header room.
func (c *conn) wakeSendersLocked() {
	if c.pendingLocked() >= outputLimit {
		return
	}
	if len(c.sendQueue) > 0 && c.sendWindow > 0 {
		c.sendQueue[0].wake.Signal()
	}
	for s := range c.awaitingHeaderRoom {
		s.wake.Signal()
	}
}

// appendDataLocked appends a DATA frame with n bytes of a followed by b, and returns the rest of
// both.
func (c *conn) appendDataLocked(s *stream, a, b []byte, n int, end bool) (restA, restB []byte) {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	out := c.reserveLocked(frameHeader + n)
	*out = appendFrameHeader(*out, n, http2.FrameData, flags, s.id)
	s.windowDelta -= int64(n)
	c.sendWindow -= int64(n)
	k := min(n, len(a))
	*out = append(*out, a[:k]...)
	a, n = a[k:], n-k
	*out = append(*out, b[:n]...)
	return a, b[n:]
}

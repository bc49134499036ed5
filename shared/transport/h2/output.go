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
	// outputFull is the size in bytes of the output at which it is written: four records.
	outputLimit = 4 * recordSize
	// record is the most that a record of TLS carries (RFC 8446, section 5.1). A DATA frame
	// is made to fill exactly one with its header.
	recordSize = 16 << 10
	// An output of less than few bytes waits for other goroutines of the connection that
	// are ready.
	smallOutput = 4 << 10
	// unflushed is how long the rest of what a handler has written is kept for what follows.
	flushDelay = time.Millisecond
	// outputPushed is how far the output may grow by what does not wait for it: a few changes
	// that a hundred watches of a connection are to hear of.
	tryWriteLimit = 8 * outputLimit
)

// Buffers of the output. A connection has one while there is something to be written; most
// have little. A pointer is what a pool takes without allocating.
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

// pendingLocked is the number of bytes in the output.
func (c *conn) pendingLocked() int {
	n := c.fullOutputBytes
	if c.output != nil {
		n += len(*c.output)
	}
	return n
}

// takeLocked takes what is to be written next.
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

// spaceLocked returns the output with space for n more bytes.
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

// flushLocked writes what is in the output, unless somebody does: who writes also sees
// to what comes meanwhile. The mutex is not held while it writes.
func (c *conn) flushLocked() {
	if c.writing || c.pendingLocked() == 0 || c.err != nil {
		return
	}
	c.writing = true
	c.yieldLocked()
	c.writeLocked()
	if c.pendingLocked() > 0 && (c.err == nil || c.writeAfterErr) {
		go c.drain() // who has written its own part is not kept for the others'
		return
	}
	c.writing = false
}

// flushLaterLocked is flushLocked for who must not wait for the network.
func (c *conn) flushAsyncLocked() {
	if c.writing || c.pendingLocked() == 0 || c.err != nil {
		return
	}
	c.writing = true
	go c.drain()
}

// flushInTimeLocked sees to it that what is in the output is written soon, although the
// handler has not asked for it: more of a large answer may follow at once, or the handler
// may wait for something.
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

// drain writes until the output is empty. Its caller has set writing.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.pendingLocked() > 0 && (c.err == nil || c.writeAfterErr) {
		c.yieldLocked()
		c.writeLocked()
	}
	c.writing = false
}

// letOthersLocked lets goroutines that are ready append theirs to an output that is
// short: a change wakes hundreds of watches, of which many share a connection. On an idle
// server nobody is ready, and nothing waits.
func (c *conn) yieldLocked() {
	if len(c.streams) == 0 || c.pendingLocked() >= smallOutput {
		return
	}
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
}

// writeLocked writes the output once. Its caller has set writing.
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

// write makes one system call of all records, where the listener has been wrapped by
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

// part is what a handler gives to its connection at once.
type responsePart struct {
	headers        []hpack.HeaderField // nil: sent already
	interim        bool                // head is not the final one (RFC 9110, section 15.2)
	buffered, data []byte              // the body, one after the other
	trailers       []hpack.HeaderField
	end            bool // of the response
	flush          bool // to the network
}

// send appends frames to the output. It waits for windows and for room in the output,
// and may write it.
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

// trySend is send for pieces of size bytes that need not wait.
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
		c.flushAsyncLocked() // there is room again for those who come next
	}
	return true
}

// Flush has the output sent, and does not wait for that.
func (c *conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushAsyncLocked()
}

// allowanceLocked waits until some of want bytes may be appended, and returns how many.
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
		// What a client has not got yet cannot make it open its window.
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

// leaveLineLocked is called by who needs nothing of the connection any more, or has had
// its turn.
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

// passTurnLocked wakes the first of those who wait for the connection, if there is
// something for it, and all who have a head to append.
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

// appendDataLocked appends a frame of n bytes, of a and then of b, and returns what is left
// of them.
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

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
	outputFull = 4 * record
	// record is the most that a record of TLS carries (RFC 8446, section 5.1). A DATA frame
	// is made to fill exactly one with its header.
	record = 16 << 10
	// An output of less than few bytes waits for other goroutines of the connection that
	// are ready.
	few = 4 << 10
	// unflushed is how long the rest of what a handler has written is kept for what follows.
	unflushed = time.Millisecond
	// outputPushed is how far the output may grow by what does not wait for it: a few changes
	// that a hundred watches of a connection are to hear of.
	outputPushed = 8 * outputFull
)

// Buffers of the output. A connection has one while there is something to be written; most
// have little. A pointer is what a pool takes without allocating.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 2*few); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, outputFull+record); return &b }}
)

func buffer(size int) *[]byte {
	if size <= 2*few {
		return smallBuffers.Get().(*[]byte)
	}
	return largeBuffers.Get().(*[]byte)
}

func release(b *[]byte) {
	*b = (*b)[:0]
	switch c := cap(*b); {
	case c < outputFull:
		smallBuffers.Put(b)
	case c <= 2*outputFull:
		largeBuffers.Put(b)
	}
}

// pendingLocked is the number of bytes in the output.
func (c *conn) pendingLocked() int {
	n := c.aheadBytes
	if c.output != nil {
		n += len(*c.output)
	}
	return n
}

// takeLocked takes what is to be written next.
func (c *conn) takeLocked() *[]byte {
	if len(c.ahead) == 0 {
		out := c.output
		c.output = nil
		return out
	}
	out := c.ahead[0]
	c.aheadBytes -= len(*out)
	if c.ahead = c.ahead[1:]; len(c.ahead) == 0 {
		c.ahead = nil
	}
	return out
}

// spaceLocked returns the output with space for n more bytes.
func (c *conn) spaceLocked(n int) *[]byte {
	switch {
	case c.output == nil:
		c.output = buffer(n)
	case cap(*c.output)-len(*c.output) < n && cap(*c.output) < outputFull:
		larger := buffer(outputFull)
		*larger = append(*larger, *c.output...)
		release(c.output)
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
	c.letOthersLocked()
	c.writeLocked()
	if c.pendingLocked() > 0 && (c.err == nil || c.parting) {
		go c.drain() // who has written its own part is not kept for the others'
		return
	}
	c.writing = false
}

// flushLaterLocked is flushLocked for who must not wait for the network.
func (c *conn) flushLaterLocked() {
	if c.writing || c.pendingLocked() == 0 || c.err != nil {
		return
	}
	c.writing = true
	go c.drain()
}

// flushInTimeLocked sees to it that what is in the output is written soon, although the
// handler has not asked for it: more of a large answer may follow at once, or the handler
// may wait for something.
func (c *conn) flushInTimeLocked() {
	switch {
	case c.inTime || c.writing || c.pendingLocked() == 0 || c.err != nil:
		return
	case c.timer == nil:
		c.timer = time.AfterFunc(unflushed, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.inTime = false
			c.flushLocked()
		})
	default:
		c.timer.Reset(unflushed)
	}
	c.inTime = true
}

// drain writes until the output is empty. Its caller has set writing.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.pendingLocked() > 0 && (c.err == nil || c.parting) {
		c.letOthersLocked()
		c.writeLocked()
	}
	c.writing = false
}

// letOthersLocked lets goroutines that are ready append theirs to an output that is
// short: a change wakes hundreds of watches, of which many share a connection. On an idle
// server nobody is ready, and nothing waits.
func (c *conn) letOthersLocked() {
	if len(c.streams) == 0 || c.pendingLocked() >= few {
		return
	}
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
}

// writeLocked writes the output once. Its caller has set writing.
func (c *conn) writeLocked() {
	out := c.takeLocked()
	c.controls = min(c.controls, c.pendingLocked())
	c.passTurnLocked()
	c.mu.Unlock()
	err := c.write(*out)
	release(out)
	c.mu.Lock()
	if err != nil {
		c.failLocked(err)
	}
	c.passTurnLocked()
}

// write makes one system call of all records, where the listener has been wrapped by
// [Listener].
func (c *conn) write(p []byte) error {
	if c.records == nil || len(p) <= record {
		_, err := c.net.Write(p)
		return err
	}
	c.records.hold()
	_, err := c.net.Write(p)
	if failed := c.records.release(); err == nil {
		err = failed
	}
	return err
}

// part is what a handler gives to its connection at once.
type part struct {
	head     []hpack.HeaderField // nil: sent already
	interim  bool                // head is not the final one (RFC 9110, section 15.2)
	a, b     []byte              // the body, one after the other
	trailers []hpack.HeaderField
	end      bool // of the response
	flush    bool // to the network
}

// send appends frames to the output. It waits for windows and for room in the output,
// and may write it.
func (s *stream) send(p part) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.failedLocked(); err != nil {
		return err
	}
	if c.tooLongLocked(p.head) || c.tooLongLocked(p.trailers) {
		c.resetLocked(s.id, http2.ErrCodeInternal)
		c.flushLaterLocked()
		return s.err
	}
	left := len(p.a) + len(p.b)
	endsWithData := p.end && len(p.trailers) == 0
	ended := endsWithData && left == 0 && p.head != nil
	if p.head != nil {
		if err := s.roomForHeadLocked(); err != nil {
			return err
		}
		c.appendHeadLocked(s.id, p.head, ended)
		s.response.sent = !p.interim
	}
	for left > 0 {
		n, err := s.allowanceLocked(left)
		if err != nil {
			return err
		}
		left -= n
		ended = endsWithData && left == 0
		p.a, p.b = c.appendDataLocked(s, p.a, p.b, n, ended)
		if left == 0 || c.window <= 0 || c.pendingLocked() >= outputFull {
			s.leaveLineLocked()
		}
		if left > 0 && c.pendingLocked() >= outputFull {
			c.flushLocked()
			if err := s.failedLocked(); err != nil {
				return err
			}
		}
	}
	switch {
	case p.end && len(p.trailers) > 0:
		if err := s.roomForHeadLocked(); err != nil {
			return err
		}
		c.appendHeadLocked(s.id, p.trailers, true)
	case p.end && !ended:
		out := c.spaceLocked(frameHeader)
		*out = appendFrameHeader(*out, 0, http2.FrameData, http2.FlagDataEndStream, s.id)
	}
	if p.end {
		s.endLocked()
	}
	if p.flush || c.pendingLocked() >= outputFull {
		c.flushLocked()
	} else {
		c.flushInTimeLocked()
	}
	return nil
}

// trySend is send for pieces of size bytes that need not wait.
func (s *stream) trySend(pieces [][]byte, size int) bool {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.failedLocked() != nil || len(c.line) > 0 || int64(size) > min(s.windowLocked(), c.window) || c.pendingLocked()+size > outputPushed {
		return false
	}
	if c.output != nil && len(*c.output)+size > outputFull {
		c.ahead = append(c.ahead, c.output)
		c.aheadBytes += len(*c.output)
		c.output = nil
	}
	for _, p := range pieces {
		for len(p) > 0 {
			n := min(len(p), int(c.maxFrame), record-frameHeader)
			p, _ = c.appendDataLocked(s, p, nil, n, false)
		}
	}
	if c.pendingLocked() >= outputFull/2 {
		c.flushLaterLocked() // there is room again for those who come next
	}
	return true
}

// Flush has the output sent, and does not wait for that.
func (c *conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLaterLocked()
}

// allowanceLocked waits until some of want bytes may be appended, and returns how many.
func (s *stream) allowanceLocked(want int) (int, error) {
	c := s.conn
	for {
		if err := s.failedLocked(); err != nil {
			s.leaveLineLocked()
			return 0, err
		}
		room := c.window > 0 && c.pendingLocked() < outputFull
		window := s.windowLocked()
		if room && window > 0 && (len(c.line) == 0 || c.line[0] == s) {
			return int(min(int64(want), window, c.window, int64(c.maxFrame), record-frameHeader)), nil
		}
		// What a client has not got yet cannot make it open its window.
		if (!room || window <= 0) && !c.writing && c.pendingLocked() > 0 {
			c.flushLocked()
			continue
		}
		if window <= 0 {
			s.leaveLineLocked()
			c.dry[s] = struct{}{}
		} else if !s.inLine {
			s.inLine = true
			c.line = append(c.line, s)
		}
		s.room.Wait()
		delete(c.dry, s)
	}
}

// leaveLineLocked is called by who needs nothing of the connection any more, or has had
// its turn.
func (s *stream) leaveLineLocked() {
	c := s.conn
	if s.inLine {
		s.inLine = false
		if i := slices.Index(c.line, s); i >= 0 {
			c.line = slices.Delete(c.line, i, i+1)
		}
	}
	c.passTurnLocked()
}

// passTurnLocked wakes the first of those who wait for the connection, if there is
// something for it, and all who have a head to append.
func (c *conn) passTurnLocked() {
	if c.pendingLocked() >= outputFull {
		return
	}
	if len(c.line) > 0 && c.window > 0 {
		c.line[0].room.Signal()
	}
	for s := range c.headed {
		s.room.Signal()
	}
}

// appendDataLocked appends a frame of n bytes, of a and then of b, and returns what is left
// of them.
func (c *conn) appendDataLocked(s *stream, a, b []byte, n int, end bool) (restA, restB []byte) {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	out := c.spaceLocked(frameHeader + n)
	*out = appendFrameHeader(*out, n, http2.FrameData, flags, s.id)
	s.given -= int64(n)
	c.window -= int64(n)
	k := min(n, len(a))
	*out = append(*out, a[:k]...)
	a, n = a[k:], n-k
	*out = append(*out, b[:n]...)
	return a, b[n:]
}

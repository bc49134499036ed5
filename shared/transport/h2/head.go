package h2

import (
	"bytes"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxControls is how many bytes of frames that wait for nothing may be in the output: a
// client that asks for so many and reads none is not waited for.
const maxControls = 1 << 20

// controlLocked returns the output for a frame without data.
func (c *conn) controlLocked() *[]byte {
	const most = frameHeader + 8 // of their bytes
	c.boundLocked(most)
	return c.spaceLocked(64)
}

// boundLocked is called for n bytes that do not wait for room in the output. It ends the
// connection of a client that reads none of them. What handlers append is not counted, for
// it waits: a connection between tiers carries the answers to many clients, and must not end
// for those to one of them.
func (c *conn) boundLocked(n int) {
	if c.controls += n; c.controls > maxControls {
		c.failLocked(http2.ConnectionError(http2.ErrCodeEnhanceYourCalm))
	}
}

// roomForHeadLocked waits until the output has room: a head can be much longer than it.
func (s *stream) roomForHeadLocked() error {
	c := s.conn
	for c.pendingLocked() >= outputFull {
		if err := s.failedLocked(); err != nil {
			return err
		}
		if !c.writing {
			c.flushLocked()
			continue
		}
		c.headed[s] = struct{}{}
		s.room.Wait()
		delete(c.headed, s)
	}
	return s.failedLocked()
}

// tooLongLocked reports whether a header list is longer than the client accepts. A client may
// answer such a list by closing the whole connection (RFC 9113, section 10.5.1).
func (c *conn) tooLongLocked(fields []hpack.HeaderField) bool {
	if c.maxList == 0 {
		return false
	}
	size := uint32(0)
	for _, f := range fields {
		size += f.Size()
	}
	return size > c.maxList
}

// appendHeadLocked appends a header block. Blocks must be appended in the order in which
// they are compressed.
func (c *conn) appendHeadLocked(id uint32, fields []hpack.HeaderField, end bool) {
	c.block.Reset()
	for _, f := range fields {
		_ = c.encoder.WriteField(f) // to a buffer
	}
	out := c.spaceLocked(frameHeader + c.block.Len())
	*out = appendHeaders(*out, id, c.block.Bytes(), end, int(c.maxFrame))
	if c.block.Cap() > 2*few {
		c.block = bytes.Buffer{} // it is kept for as long as the connection
	}
}

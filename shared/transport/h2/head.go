package h2

import (
	"bytes"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxControls is how many bytes of frames that wait for nothing may be in the output: a
// client that asks for so many and reads none is not waited for.
const maxControlBytes = 1 << 20

// controlLocked returns the output for a frame without data.
func (c *conn) controlBufferLocked() *[]byte {
	const most = frameHeader + 8 // of their bytes
	c.countControlLocked(most)
	return c.reserveLocked(64)
}

// boundLocked is called for n bytes that do not wait for room in the output. It ends the
// connection of a client that reads none of them. What handlers append is not counted, for
// it waits: a connection between tiers carries the answers to many clients, and must not end
// for those to one of them.
func (c *conn) countControlLocked(n int) {
	if c.controlBytes += n; c.controlBytes > maxControlBytes {
		c.failLocked(http2.ConnectionError(http2.ErrCodeEnhanceYourCalm))
	}
}

// roomForHeadLocked waits until the output has room: a head can be much longer than it.
func (s *stream) waitForHeaderRoomLocked() error {
	c := s.conn
	for c.pendingLocked() >= outputLimit {
		if err := s.errLocked(); err != nil {
			return err
		}
		if !c.writing {
			c.flushLocked()
			continue
		}
		c.awaitingHeaderRoom[s] = struct{}{}
		s.wake.Wait()
		delete(c.awaitingHeaderRoom, s)
	}
	return s.errLocked()
}

// tooLongLocked reports whether a header list is longer than the client accepts. A client may
// answer such a list by closing the whole connection (RFC 9113, section 10.5.1).
func (c *conn) exceedsPeerLimitLocked(fields []hpack.HeaderField) bool {
	if c.peerMaxHeaderList == 0 {
		return false
	}
	size := uint32(0)
	for _, f := range fields {
		size += f.Size()
	}
	return size > c.peerMaxHeaderList
}

// appendHeadLocked appends a header block. Blocks must be appended in the order in which
// they are compressed.
func (c *conn) appendHeadersLocked(id uint32, fields []hpack.HeaderField, end bool) {
	c.hpackBuf.Reset()
	for _, f := range fields {
		_ = c.hpackEncoder.WriteField(f) // to a buffer
	}
	out := c.reserveLocked(frameHeader + c.hpackBuf.Len())
	*out = appendHeaders(*out, id, c.hpackBuf.Bytes(), end, int(c.maxFrameSize))
	if c.hpackBuf.Cap() > 2*smallOutput {
		c.hpackBuf = bytes.Buffer{} // it is kept for as long as the connection
	}
}

package h2

import (
	"golang.org/x/net/http2"
)

// maxControlBytes bounds the frames in the output that do not wait for room, in bytes. The
// connection of a client that causes more of them without reading is closed.
const maxControlBytes = 1 << 20

// controlBufferLocked returns the output for a control frame.
func (c *conn) controlBufferLocked() *[]byte {
	const most = frameHeader + 8 // bytes of the longest control frame
	c.countControlLocked(most)
	return c.reserveLocked(64)
}

// countControlLocked counts n bytes that do not wait for output room, and ends the connection
// of a client that does not read them. Responses do not count, because they wait: a connection
// between tiers carries the responses of many clients, and must not end because of one of them.
func (c *conn) countControlLocked(n int) {
	if c.controlBytes += n; c.controlBytes > maxControlBytes {
		c.failLocked(http2.ConnectionError(http2.ErrCodeEnhanceYourCalm))
	}
}

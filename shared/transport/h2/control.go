package h2

import (
	"golang.org/x/net/http2"
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

package h2

import (
	"errors"
	"slices"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"
)

// handleFrame handles a frame on the reading goroutine.
func (c *conn) handleFrame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		c.headers.start(f)
		return c.handleHeaderBlock(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.ContinuationFrame: // the framer checks the order
		return c.handleHeaderBlock(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.DataFrame:
		return c.handleData(f)
	case *http2.SettingsFrame:
		return c.handleSettings(f)
	case *http2.WindowUpdateFrame:
		return c.handleWindowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.handleReset(f)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		out := c.controlBufferLocked()
		*out = appendPingAck(*out, f.Data)
		c.flushAsyncLocked()
		return c.err
	case *http2.GoAwayFrame:
		c.mu.Lock()
		defer c.mu.Unlock()
		if f.ErrCode != http2.ErrCodeNo && !c.goAwaySent {
			debug := f.DebugData()
			klog.Background().V(2).Info("HTTP/2 client has gone away", "client", c.remote, "code", f.ErrCode.String(), "debug", string(debug[:min(len(debug), maxLoggedDebugData)]))
		}
		c.goAwayLocked()
		return nil
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
		return nil
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol) // only servers push (RFC 9113, section 8.4)
	default:
		return nil // RFC 9113, section 4.1: ignore unknown frames
	}
}

// handleHeaderBlock handles a fragment of a header block.
func (c *conn) handleHeaderBlock(fragment []byte, last bool) error {
	err := c.headers.decode(fragment, last)
	if err != nil || !last {
		return err
	}
	err = c.handleHeaders(c.headers)
	c.headers.reset()
	return err
}

// handleSettings applies the client's settings (RFC 9113, section 6.5).
func (c *conn) handleSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if c.settingsAcked {
			return http2.ConnectionError(http2.ErrCodeProtocol) // only one SETTINGS frame was sent; Go's server does the same
		}
		c.settingsAcked = true
		return nil
	}
	if f.NumSettings() > 100 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.initialWindow
	if err := f.ForeachSetting(c.applySettingLocked); err != nil {
		return err
	}
	if c.initialWindow > was {
		if err := c.initialWindowRaisedLocked(); err != nil {
			return err
		}
	}
	out := c.controlBufferLocked()
	*out = appendSettingsAck(*out)
	c.flushAsyncLocked()
	return c.err
}

func (c *conn) applySettingLocked(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.hpackEncoder.SetMaxDynamicTableSize(min(s.Val, headerTableSize))
	case http2.SettingMaxFrameSize:
		c.maxFrameSize = s.Val
	case http2.SettingMaxHeaderListSize:
		c.peerMaxHeaderList = s.Val
	case http2.SettingInitialWindowSize:
		c.initialWindow = int64(s.Val)
	}
	return nil
}

// initialWindowRaisedLocked handles an increase of SETTINGS_INITIAL_WINDOW_SIZE, which applies
// to all open streams (RFC 9113, section 6.9.2). maxWindowDelta is an upper bound, so the loop
// over all streams runs only if a window may overflow: clients may send SETTINGS at any rate.
func (c *conn) initialWindowRaisedLocked() error {
	if c.initialWindow+c.maxWindowDelta > maxWindow {
		c.maxWindowDelta = 0
		for _, s := range c.streams {
			c.maxWindowDelta = max(c.maxWindowDelta, s.windowDelta)
		}
		if c.initialWindow+c.maxWindowDelta > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	}
	for s := range c.awaitingWindow {
		if s.sendWindowLocked() > 0 {
			s.wake.Signal()
		}
	}
	return nil
}

func (c *conn) handleWindowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.wakeSendersLocked()
		return nil
	}
	s, err := c.streamLocked(f.StreamID)
	if s == nil {
		return err
	}
	s.windowDelta += int64(f.Increment)
	if s.sendWindowLocked() > maxWindow {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	c.maxWindowDelta = max(c.maxWindowDelta, s.windowDelta)
	s.wake.Signal()
	return nil
}

// streamLocked returns a stream, or nil if it is closed. A stream that was never opened is a
// connection error (RFC 9113, section 5.1).
func (c *conn) streamLocked(id uint32) (*stream, error) {
	if s := c.streams[id]; s != nil {
		return s, nil
	}
	if id > c.lastStreamID && !c.goAwaySent || id%2 == 0 { // after GOAWAY, new streams are ignored
		return nil, http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil, nil
}

func (c *conn) handleReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.streamLocked(f.StreamID)
	if s != nil {
		s.closeLocked(http2.StreamError{StreamID: s.id, Code: f.ErrCode})
	}
	return err
}

// handleError resets the stream of a stream error, and returns other errors.
func (c *conn) handleError(err error) error {
	var failed http2.StreamError
	if errors.As(err, &failed) {
		return c.handleStreamError(failed)
	}
	return err
}

// handleStreamError resets the stream of an invalid frame.
func (c *conn) handleStreamError(e http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.StreamID > c.lastStreamID {
		if c.goAwaySent {
			return c.err // GOAWAY has told the client that this stream is not processed
		}
		if e.StreamID%2 == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if e.StreamID == c.headers.id { // only HEADERS open a stream
			c.lastStreamID = e.StreamID
		}
	}
	c.resetStreamLocked(e.StreamID, e.Code)
	c.flushAsyncLocked()
	return c.err
}

// resetStreamLocked closes a stream and sends RST_STREAM.
func (c *conn) resetStreamLocked(id uint32, code http2.ErrCode) {
	if s := c.streams[id]; s != nil {
		s.closeLocked(http2.StreamError{StreamID: id, Code: code})
	}
	if len(c.recentResets) < 2*c.server.MaxConcurrentStreams {
		c.recentResets = append(c.recentResets, id)
	} else {
		c.recentResets[c.oldestReset%len(c.recentResets)] = id
		c.oldestReset++
	}
	out := c.controlBufferLocked()
	*out = appendReset(*out, id, code)
}

// wasResetLocked reports whether this server reset the stream recently. Frames that the client
// sent before it received RST_STREAM are ignored (RFC 9113, section 5.1).
func (c *conn) wasResetLocked(id uint32) bool {
	return slices.Contains(c.recentResets, id)
}

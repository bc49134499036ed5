package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// linger is how long a connection that is over is read from: if it were closed at
	// once, what is on the way to the client might not arrive.
	lingerTimeout = time.Second
	// prefaceWithin is how long a client may take to begin.
	prefaceTimeout = 10 * time.Second
	// defaultWindow and defaultMaxFrame hold until SETTINGS say something else (RFC 9113,
	// section 6.5.2).
	defaultWindow, defaultMaxFrame = 64<<10 - 1, 16 << 10
	maxWindow                      = 1<<31 - 1
	headerTableSize                = 4 << 10
	// waitingPerHandler bounds requests whose handlers wait for those of streams that are
	// over already.
	maxQueuedPerStream = 4
	// headLists is how many of the longest header lists the requests of a connection may
	// have together: a byte of a header block can stand for 4 KiB of them, and a client that
	// takes no answer keeps its requests here.
	maxHeaderLists = 8
	// maxWhy is how much is logged of what a client says when it goes.
	maxLoggedDebugData = 256
)

// conn is a connection.
type conn struct {
	server  *server
	net     net.Conn
	rawConn net.Conn  // that TLS writes to
	corked  *corkConn // the same; nil where the listener is not [Listener]'s
	tls     *tls.ConnectionState
	remote  string
	handler http.Handler
	ctx     context.Context // of all requests; never ends

	// Those below belong to the goroutine that reads.

	framer        *http2.Framer
	headers       *headerBlock
	settingsAcked bool // our SETTINGS are

	mu            sync.Mutex
	streams       map[uint32]*stream // that are not closed; guarded by mu
	lastStreamID  uint32             // the client has opened; guarded by mu
	err           error              // why the connection is over; guarded by mu
	writeAfterErr bool               // what is in the output is written although it is over; guarded by mu
	goAwaySent    bool               // GOAWAY has been sent; guarded by mu
	lastActive    time.Time          // when the last stream was closed; guarded by mu
	idleTimer     *time.Timer        // guarded by mu

	runningHandlers int       // that run, of closed streams, too; guarded by mu
	headerBytes     int64     // bytes of the header lists of their requests, and of those that wait; guarded by mu
	queuedStreams   []*stream // for a handler to end; guarded by mu
	// reset are the last streams that were ended by us while the client might still send,
	// at nextReset the oldest where there are as many as are remembered.
	recentResets []uint32 // guarded by mu
	oldestReset  int      // guarded by mu

	output *[]byte // frames to be written, nil for none; guarded by mu
	// ahead are full outputs to be written before it, of aheadBytes; guarded by mu.
	fullOutputs        []*[]byte
	fullOutputBytes    int
	writing            bool                 // somebody writes, or is about to; guarded by mu
	flushScheduled     bool                 // timer will flush; guarded by mu
	flushTimer         *time.Timer          // guarded by mu
	sendQueue          []*stream            // that wait for room or for the connection's window; guarded by mu
	sendWindow         int64                // bytes of DATA that the client takes; guarded by mu
	initialWindow      int64                // window of new streams; guarded by mu
	maxWindowDelta     int64                // no stream has been given more than that; guarded by mu
	awaitingWindow     map[*stream]struct{} // streams that wait for their own window; guarded by mu
	awaitingHeaderRoom map[*stream]struct{} // streams that wait for room for a head; guarded by mu
	controlBytes       int                  // bytes of the output at most that did not wait for room; guarded by mu
	maxFrameSize       uint32               // that the client takes; guarded by mu
	peerMaxHeaderList  uint32               // bytes of a header list that the client takes, 0 for any; guarded by mu
	hpackBuf           bytes.Buffer         // guarded by mu
	hpackEncoder       *hpack.Encoder       // into block; guarded by mu

	recvWindow          int64 // bytes of DATA that the client may send; guarded by mu
	pendingWindowUpdate int64 // bytes of DATA that it has not been told it may send again; guarded by mu
}

// serve returns when the connection is over. Handlers may still run then; their contexts
// have ended.
func (c *conn) serve() {
	c.mu.Lock()
	c.idleTimer = time.AfterFunc(c.server.IdleTimeout, c.onIdleTimeout)
	c.mu.Unlock()
	err := c.handshake()
	if err == nil {
		c.server.add(c)
		defer c.server.remove(c)
	}
	for err == nil {
		var f http2.Frame
		if f, err = c.framer.ReadFrame(); err == nil {
			err = c.handleFrame(f)
		}
		if err != nil {
			err = c.handleError(err)
		}
	}
	c.close(err)
}

// begin exchanges prefaces (RFC 9113, section 3.4).
func (c *conn) handshake() error {
	if state := c.tls; state != nil && state.Version == tls.VersionTLS12 && !isAllowedCipher(state.CipherSuite) {
		return http2.ConnectionError(http2.ErrCodeInadequateSecurity)
	}
	o := c.server.Options
	c.mu.Lock()
	out := c.reserveLocked(128)
	*out = appendSettings(*out,
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(o.MaxUploadPerStream)},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(o.MaxConcurrentStreams)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.server.maxHeaderList()},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(o.MaxUploadPerStream)},
	)
	c.recvWindow = o.connWindow()
	if more := c.recvWindow - defaultWindow; more > 0 {
		*out = appendWindowUpdate(*out, 0, int(more))
	}
	c.flushAsyncLocked()
	c.mu.Unlock()

	_ = c.net.SetReadDeadline(time.Now().Add(prefaceTimeout)) // on a connection that is closed reading fails, too
	in := bufio.NewReader(c.net)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(in, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.framer = http2.NewFramer(nil, in)
	c.framer.SetMaxReadFrameSize(uint32(o.MaxUploadPerStream))
	c.framer.SetReuseFrames()
	c.headers = newHeaderBlock(c.server.maxHeaderList())
	f, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	settings, ok := f.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	_ = c.net.SetReadDeadline(time.Time{})
	return c.handleSettings(settings)
}

// adequate tells of a cipher suite of TLS 1.2 whether HTTP/2 allows it (RFC 9113,
// appendix A, forbids all but those with ephemeral keys and authenticated encryption).
func isAllowedCipher(suite uint16) bool {
	switch suite {
	case tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:
		return true
	}
	return false
}

// end tells the client why, if it is for the client to know, and closes the connection.
func (c *conn) close(err error) {
	code, tell := http2.ErrCodeNo, false
	var failed http2.ConnectionError
	switch {
	case errors.As(err, &failed):
		code, tell = http2.ErrCode(failed), true
	case errors.Is(err, http2.ErrFrameTooLarge):
		code, tell = http2.ErrCodeFrameSize, true
	}
	c.mu.Lock()
	c.idleTimer.Stop()
	if c.flushTimer != nil {
		c.flushTimer.Stop()
	}
	if tell && c.err == nil {
		why := ""
		if c.framer != nil && c.framer.ErrorDetail() != nil {
			why = c.framer.ErrorDetail().Error()
		}
		out := c.reserveLocked(frameHeader + 8 + len(why))
		*out = appendGoAway(*out, c.lastStreamID, code, why)
		_ = c.net.SetWriteDeadline(time.Now().Add(lingerTimeout)) // it is closed soon, whatever happens
		c.flushLocked()
		c.writeAfterErr = true // where somebody else writes
	}
	c.failLocked(fmt.Errorf("the connection is over: %w", err))
	c.mu.Unlock()
	if tell {
		_ = c.net.SetReadDeadline(time.Now().Add(lingerTimeout))
		_, _ = io.Copy(io.Discard, c.rawConn) // until the client has heard of it
	}
	_ = c.net.Close() // it is over, whatever that returns
}

// failLocked ends the connection. Whoever waits for it is woken.
func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	for _, s := range c.streams {
		s.closeLocked(err)
	}
	c.sendQueue, c.queuedStreams = nil, nil
	_ = c.net.SetReadDeadline(time.Unix(1, 0)) // wakes who reads, and that one closes it
	// It may be waiting for who writes, where TLS has to answer.
	_ = c.net.SetWriteDeadline(time.Now().Add(lingerTimeout))
}

// leave lets the requests that are there end, and takes no more (RFC 9113, section 6.8).
func (c *conn) goAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.goAwayLocked()
}

func (c *conn) goAwayLocked() {
	if c.goAwaySent || c.err != nil {
		return
	}
	c.goAwaySent = true
	out := c.controlBufferLocked()
	*out = appendGoAway(*out, c.lastStreamID, http2.ErrCodeNo, "")
	c.flushAsyncLocked()
	if len(c.streams) == 0 {
		c.closeSoonLocked()
	}
}

// lingerLocked gives the client time to close the connection itself.
func (c *conn) closeSoonLocked() {
	c.idleTimer.Stop()
	c.idleTimer = time.AfterFunc(lingerTimeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.failLocked(http.ErrServerClosed)
	})
}

func (c *conn) onIdleTimeout() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.goAwaySent || c.err != nil {
		return
	}
	unused := c.server.IdleTimeout
	if len(c.streams) == 0 {
		unused -= time.Since(c.lastActive)
	}
	if unused <= 0 {
		c.goAwayLocked()
		return
	}
	c.idleTimer.Reset(unused)
}

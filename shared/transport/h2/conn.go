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
	// lingerTimeout bounds how long a closing connection is still read: closing it at once
	// could reset it before the last frames arrive at the client.
	lingerTimeout = time.Second
	// prefaceTimeout bounds the time until the client's preface and SETTINGS arrive.
	prefaceTimeout = 10 * time.Second
	// defaultWindow and defaultMaxFrame apply until the first SETTINGS (RFC 9113, section 6.5.2).
	defaultWindow, defaultMaxFrame = 64<<10 - 1, 16 << 10
	maxWindow                      = 1<<31 - 1
	headerTableSize                = 4 << 10
	// maxQueuedPerStream times MaxConcurrentStreams is the maximum number of queued streams.
	maxQueuedPerStream = 4
	// maxHeaderLists times the maximum header list is the limit for all requests of a
	// connection: one byte of a header block can expand to 4 KiB, and a client that does not
	// read responses keeps its requests in memory.
	maxHeaderLists = 8
	// maxLoggedDebugData bounds the logged debug data of GOAWAY, in bytes.
	maxLoggedDebugData = 256
)

// conn is a connection. Its serve goroutine reads; any goroutine may write.
type conn struct {
	server  *server
	net     net.Conn
	rawConn net.Conn  // below TLS
	corked  *corkConn // rawConn, or nil if the listener is not a [Listener]
	tls     *tls.ConnectionState
	remote  string
	handler http.Handler
	ctx     context.Context // parent of all request contexts; never canceled

	// The reading goroutine owns these fields.

	framer        *http2.Framer
	headers       *headerBlock
	settingsAcked bool

	mu sync.Mutex // guards all fields below

	streams       map[uint32]*stream // open and half-closed streams
	lastStreamID  uint32             // highest stream ID that the client has opened
	err           error              // why the connection has ended
	writeAfterErr bool               // write the rest of the output although err is set
	goAwaySent    bool
	lastActive    time.Time // when the last stream was closed
	idleTimer     *time.Timer

	runningHandlers int       // including handlers of closed streams
	headerBytes     int64     // header lists of running and queued requests
	queuedStreams   []*stream // waiting for a running handler to end
	// recentResets is a ring of the last streams that this server reset. Once it is full,
	// oldestReset is the index of its oldest entry.
	recentResets []uint32
	oldestReset  int

	// Writing: fullOutputs come before output, which is nil while it is empty.
	output          *[]byte
	fullOutputs     []*[]byte
	fullOutputBytes int
	controlBytes    int  // upper bound of the bytes of output that did not wait for room
	writing         bool // a goroutine writes or is about to
	flushScheduled  bool // flushTimer is running
	flushTimer      *time.Timer
	hpackBuf        bytes.Buffer
	hpackEncoder    *hpack.Encoder // writes to hpackBuf

	// Flow control of responses.
	sendQueue          []*stream            // waiting for output room or sendWindow, in order
	sendWindow         int64                // of the connection, in bytes
	initialWindow      int64                // SETTINGS_INITIAL_WINDOW_SIZE of the client
	maxWindowDelta     int64                // upper bound of windowDelta of all streams
	awaitingWindow     map[*stream]struct{} // waiting for their own window
	awaitingHeaderRoom map[*stream]struct{} // waiting for output room for a header block
	maxFrameSize       uint32               // SETTINGS_MAX_FRAME_SIZE of the client
	peerMaxHeaderList  uint32               // SETTINGS_MAX_HEADER_LIST_SIZE of the client, 0 if unlimited

	// Flow control of request bodies.
	recvWindow          int64 // of the connection, in bytes
	pendingWindowUpdate int64 // consumed bytes that no WINDOW_UPDATE has returned yet
}

// serve serves the connection until it ends. Handlers may still be running afterwards, with
// canceled contexts.
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

// handshake exchanges connection prefaces (RFC 9113, section 3.4).
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

	_ = c.net.SetReadDeadline(time.Now().Add(prefaceTimeout)) // an error also fails the read
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

// isAllowedCipher reports whether HTTP/2 allows a cipher suite of TLS 1.2: RFC 9113, appendix A,
// prohibits all but ephemeral key exchange with authenticated encryption.
func isAllowedCipher(suite uint16) bool {
	switch suite {
	case tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:
		return true
	}
	return false
}

// close sends GOAWAY if the client has violated the protocol, and closes the connection.
func (c *conn) close(err error) {
	code, sendGoAway := http2.ErrCodeNo, false
	var failed http2.ConnectionError
	switch {
	case errors.As(err, &failed):
		code, sendGoAway = http2.ErrCode(failed), true
	case errors.Is(err, http2.ErrFrameTooLarge):
		code, sendGoAway = http2.ErrCodeFrameSize, true
	}
	c.mu.Lock()
	c.idleTimer.Stop()
	if c.flushTimer != nil {
		c.flushTimer.Stop()
	}
	if sendGoAway && c.err == nil {
		debug := ""
		if c.framer != nil && c.framer.ErrorDetail() != nil {
			debug = c.framer.ErrorDetail().Error()
		}
		out := c.reserveLocked(frameHeader + 8 + len(debug))
		*out = appendGoAway(*out, c.lastStreamID, code, debug)
		_ = c.net.SetWriteDeadline(time.Now().Add(lingerTimeout)) // an error also fails the write
		c.flushLocked()
		c.writeAfterErr = true // if another goroutine is writing
	}
	c.failLocked(fmt.Errorf("connection closed: %w", err))
	c.mu.Unlock()
	if sendGoAway {
		_ = c.net.SetReadDeadline(time.Now().Add(lingerTimeout))
		_, _ = io.Copy(io.Discard, c.rawConn) // until the client closes or the deadline passes
	}
	_ = c.net.Close() // no error matters any more
}

// failLocked ends the connection and wakes all goroutines that wait for it.
func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	for _, s := range c.streams {
		s.closeLocked(err)
	}
	c.sendQueue, c.queuedStreams = nil, nil
	_ = c.net.SetReadDeadline(time.Unix(1, 0)) // ends serve, which closes the connection
	// A read may wait for a write, because TLS sends alerts and key updates.
	_ = c.net.SetWriteDeadline(time.Now().Add(lingerTimeout))
}

// goAway accepts no new streams and lets the open ones finish (RFC 9113, section 6.8).
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

// closeSoonLocked closes the connection after the client has had time to do so itself.
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

package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Target is a server and the credential to use.
type Target struct {
	URL   string // https://host:port
	TLS   *tls.Config
	Token string
}

// Conn is an HTTP/2 connection to a target, which is established by the first request, and
// again if it breaks. Its methods may be called concurrently; each request is a stream of
// the connection.
type Conn struct {
	target    Target
	transport *http.Transport
	wire      atomic.Int64
}

// Dial returns a connection. The caller closes it.
func Dial(target Target) *Conn {
	c := &Conn{target: target}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	c.transport = &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return counted{raw, &c.wire}, nil
		},
		TLSClientConfig:   target.TLS.Clone(),
		ForceAttemptHTTP2: true,
		// Bodies are counted as sent.
		DisableCompression: true,
	}
	return c
}

// DialAll returns n connections, spread evenly over the targets.
func DialAll(n int, targets ...Target) []*Conn {
	conns := make([]*Conn, n)
	for i := range conns {
		conns[i] = Dial(targets[i%len(targets)])
	}
	return conns
}

// CloseAll closes connections.
func CloseAll(conns []*Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// Close closes the connection when its requests have ended.
func (c *Conn) Close() { c.transport.CloseIdleConnections() }

// Wire returns the number of bytes read from and written to the connection, including TLS.
func (c *Conn) Wire() int64 { return c.wire.Load() }

// counted counts the bytes of a connection.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// Request is a request and its expected response.
type Request struct {
	Method      string // empty means GET
	Path        string // with its query
	Accept      string
	ContentType string
	// Encoding is Accept-Encoding; empty accepts none.
	Encoding string
	Body     []byte
	// Status is the expected status; 0 means 200.
	Status int
	// MinSize and MaxSize bound the body of the response, in bytes as sent; MaxSize 0 is no
	// bound.
	MinSize, MaxSize int64
}

// ErrAnswer is wrapped by errors about an unexpected response.
var ErrAnswer = errors.New("unexpected answer")

// Do sends the request, reads the response through buffer without keeping it, and returns
// the size of its body.
func (c *Conn) Do(ctx context.Context, r Request, buffer []byte) (int64, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if err := r.checkStatus(resp); err != nil {
		return 0, err
	}
	var size int64
	for {
		n, err := resp.Body.Read(buffer)
		size += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("%s after %d bytes: %w", r, size, err)
		}
	}
	return size, r.checkSize(size)
}

// Get is Do for callers that need the body.
func (c *Conn) Get(ctx context.Context, r Request) ([]byte, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := r.checkStatus(resp); err != nil {
		return nil, err
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return nil, fmt.Errorf("%s: %w", r, err)
	}
	return body.Bytes(), r.checkSize(int64(body.Len()))
}

func (c *Conn) send(ctx context.Context, r Request) (*http.Response, error) {
	var body io.Reader
	if r.Body != nil {
		body = bytes.NewReader(r.Body)
	}
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, c.target.URL+r.Path, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r, err)
	}
	for name, value := range map[string]string{
		"Accept": r.Accept, "Content-Type": r.ContentType, "Accept-Encoding": r.Encoding,
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if c.target.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.target.Token)
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r, err)
	}
	if resp.ProtoMajor != 2 {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %w: %s instead of HTTP/2", r, ErrAnswer, resp.Proto)
	}
	return resp, nil
}

func (r Request) checkStatus(resp *http.Response) error {
	want := r.Status
	if want == 0 {
		want = http.StatusOK
	}
	if resp.StatusCode == want {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return &StatusError{Request: r.String(), Code: resp.StatusCode, Want: want, Body: string(bytes.TrimSpace(text))}
}

// StatusError is a response with an unexpected status.
type StatusError struct {
	Request    string
	Code, Want int
	Body       string // its beginning
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: status %d instead of %d: %s", e.Request, e.Code, e.Want, e.Body)
}

// Unwrap returns [ErrAnswer].
func (e *StatusError) Unwrap() error { return ErrAnswer }

func (r Request) checkSize(size int64) error {
	if size < r.MinSize || r.MaxSize > 0 && size > r.MaxSize {
		return fmt.Errorf("%s: %w: %d bytes, not between %d and %d", r, ErrAnswer, size, r.MinSize, r.MaxSize)
	}
	return nil
}

// String names the request in errors.
func (r Request) String() string {
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	return method + " " + r.Path
}

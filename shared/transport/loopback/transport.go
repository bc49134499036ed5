package loopback

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
)

var (
	// ErrNotServing is returned while the handler does not exist yet. It wraps
	// [syscall.ECONNREFUSED], so that client-go treats it as a server that is still starting.
	ErrNotServing = errors.New("the server in this process is not built yet")
	// ErrUpgrade is returned for requests to upgrade the connection.
	ErrUpgrade = errors.New("a connection inside the process cannot be upgraded")
)

// remoteAddr is the address that handlers see. It is on the loopback interface, because audit,
// priority and fairness, and admission require an address that parses.
const remoteAddr = "127.0.0.1:0"

// Transport is an [http.RoundTripper] that calls a handler in this process. It is safe for
// concurrent use.
type Transport struct {
	handler func() http.Handler
}

// New returns a transport to the handler that the function returns. It calls the function for
// each request, because servers are built after the clients that they need themselves. While
// the function returns nil, requests fail with [ErrNotServing].
func New(handler func() http.Handler) *Transport { return &Transport{handler: handler} }

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if err := context.Cause(ctx); err != nil {
		closeBody(req)
		return nil, err
	}
	if wantsUpgrade(req.Header) {
		closeBody(req)
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, ErrUpgrade)
	}
	handler := t.handler()
	if handler == nil {
		closeBody(req)
		return nil, fmt.Errorf("%w: %w", ErrNotServing, syscall.ECONNREFUSED)
	}

	e := newExchange(req)
	serverCtx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.stopWatching = context.AfterFunc(ctx, func() { e.abort(context.Cause(ctx)) })
	go e.serve(handler, serverRequest(serverCtx, req, e))

	select {
	case <-e.ready:
	case <-ctx.Done():
		// The handler may have finished first. Either result is correct then, and a client that
		// has canceled expects this one.
		e.abort(context.Cause(ctx))
		return nil, context.Cause(ctx)
	}
	if e.failure != nil {
		e.stopWatching()
		return nil, e.failure
	}
	return &e.response, nil
}

// serverRequest returns the request as a server would have parsed it.
func serverRequest(ctx context.Context, req *http.Request, e *exchange) *http.Request {
	in := (&http.Request{
		Method:        req.Method,
		URL:           &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery},
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        req.Header.Clone(),
		Host:          req.Host,
		ContentLength: req.ContentLength,
		Body:          http.NoBody,
		RemoteAddr:    remoteAddr,
		RequestURI:    req.URL.RequestURI(),
	}).WithContext(ctx)
	if in.Method == "" {
		in.Method = http.MethodGet
	}
	if in.URL.Path == "" {
		in.URL.Path = "/"
	}
	if in.Header == nil {
		in.Header = http.Header{}
	}
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	if e.requestBody.source != nil {
		in.Body = &e.requestBody
		if in.ContentLength == 0 {
			in.ContentLength = -1
		}
	}
	return in
}

func wantsUpgrade(h http.Header) bool {
	for _, value := range h["Connection"] {
		if strings.Contains(strings.ToLower(value), "upgrade") {
			return true
		}
	}
	return false
}

// closeBody closes the body, as [http.RoundTripper] requires even on errors.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

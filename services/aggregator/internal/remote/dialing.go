package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// ejection is how long an address that could not be dialled is tried last.
const ejection = 5 * time.Second

// Ejected holds the addresses that could not be dialled recently. All Backends share it, because
// several APIServices often have the same address. It is safe for concurrent use.
type Ejected struct {
	now func() time.Time

	mu    sync.Mutex
	until map[string]time.Time
}

// NewEjected returns an Ejected without addresses.
func NewEjected() *Ejected {
	return &Ejected{now: time.Now, until: map[string]time.Time{}}
}

// order moves ejected addresses to the end and otherwise preserves the order. If all are ejected,
// they are all tried.
func (e *Ejected) order(addresses []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.until) == 0 || len(addresses) < 2 {
		return addresses
	}
	now := e.now()
	good := make([]string, 0, len(addresses))
	var bad []string
	for _, address := range addresses {
		switch until, failed := e.until[address]; {
		case !failed:
			good = append(good, address)
		case now.After(until):
			delete(e.until, address)
			good = append(good, address)
		default:
			bad = append(bad, address)
		}
	}
	return slices.Concat(good, bad)
}

func (e *Ejected) markFailed(address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	for other, until := range e.until {
		if now.After(until) {
			delete(e.until, other)
		}
	}
	e.until[address] = now.Add(ejection)
}

func (e *Ejected) markReachable(address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.until, address)
}

// sendToFirst sends a request to the first address that can be dialled. It does not retry after any
// other error, because the server may have processed the request.
func (b *Backend) sendToFirst(transport http.RoundTripper, addresses []string, req *http.Request) (*http.Response, error) {
	var err error
	for _, address := range addresses {
		sent := *req
		url := *req.URL
		url.Scheme, url.Host = "https", address
		sent.URL, sent.Host = &url, address
		if _, proxied := req.Header["X-Forwarded-Host"]; proxied {
			sent.Header.Set("X-Forwarded-Host", address)
		}
		if req.Body != nil {
			// A transport closes the body even without reading it; the caller closes it at
			// the end.
			sent.Body = io.NopCloser(req.Body)
		}
		var resp *http.Response
		if resp, err = transport.RoundTrip(&sent); err == nil {
			b.network.Ejected.markReachable(address)
			return resp, nil
		}
		if !isDialError(err) {
			return nil, err
		}
		b.network.Ejected.markFailed(address)
		if req.Context().Err() != nil {
			return nil, err
		}
	}
	return nil, err
}

// isDialError reports whether err occurred before there was a connection.
func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// dialFirst returns a dial function that ignores its address and connects to the first of
// addresses that can be dialled.
func (b *Backend) dialFirst(dial DialFunc, addresses []string) DialFunc {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		var errs []error
		for _, address := range addresses {
			conn, err := dial(ctx, network, address)
			if err == nil {
				b.network.Ejected.markReachable(address)
				return conn, nil
			}
			b.network.Ejected.markFailed(address)
			errs = append(errs, err)
			if ctx.Err() != nil {
				break
			}
		}
		return nil, errors.Join(errs...)
	}
}

// addresses resolves the Service, with ejected addresses last.
func (b *Backend) addresses() ([]string, error) {
	service := b.apiService.Spec.Service
	found, err := b.network.Resolver.Resolve(service.Namespace, service.Name, b.port())
	if err != nil {
		return nil, fmt.Errorf("%w %s/%s: %w", errUnresolved, service.Namespace, service.Name, err)
	}
	return b.network.Ejected.order(found), nil
}

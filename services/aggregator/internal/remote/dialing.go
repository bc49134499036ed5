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

// Ejected remembers which addresses could not be dialled. One is shared by all
// Backends, for several APIServices often live behind one address.
type Ejected struct {
	now func() time.Time

	mu    sync.Mutex
	until map[string]time.Time
}

// NewEjected returns an empty memory.
func NewEjected() *Ejected {
	return &Ejected{now: time.Now, until: map[string]time.Time{}}
}

// order moves the addresses that failed lately to the end and keeps the order
// otherwise: if all have failed they are all tried still.
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

// attempt sends a request to the first of the addresses that can be dialled. A
// failure after that is the caller's to see: the server may have acted.
func (b *Backend) sendToFirst(transport http.RoundTripper, addresses []string, req *http.Request) (*http.Response, error) {
	var err error
	for _, address := range addresses {
		sent := *req
		url := *req.URL
		url.Scheme, url.Host = "https", address
		sent.URL, sent.Host = &url, address
		if req.Body != nil {
			// A transport closes the body even if it has read nothing of it;
			// whoever gave us the request closes it at the end.
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

// undialled tells whether an error arose before there was a connection.
func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// dialFirst is a dial that ignores the address it is given and connects to the
// first of ours that answers.
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

// addresses resolves the Service, best address first.
func (b *Backend) addresses() ([]string, error) {
	service := b.apiService.Spec.Service
	found, err := b.network.Resolver.Resolve(service.Namespace, service.Name, b.port())
	if err != nil {
		return nil, fmt.Errorf("%w %s/%s: %w", errUnresolved, service.Namespace, service.Name, err)
	}
	return b.network.Ejected.order(found), nil
}

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// defaultHealthTimeout is that of --etcd-healthcheck-timeout and
// --etcd-readycheck-timeout.
const defaultHealthTimeout = 2 * time.Second

// HealthOptions are the options of a health check. Zero values are defaults.
type HealthOptions struct {
	// Prefix is --etcd-prefix, whose keys the client may read.
	Prefix string
	// Timeout bounds one check; 2 s by default.
	Timeout time.Duration
}

// HealthCheck returns the checks "etcd" and "etcd-readiness" of healthz and readyz. They make
// a linearizable read, so that an etcd without a quorum is unhealthy. They read at most twice
// per timeout; calls in between return the last result.
func HealthCheck(client *clientv3.Client, o HealthOptions) func(context.Context) error {
	h := &health{client: client, key: path.Join("/", o.Prefix, "health"), timeout: o.Timeout}
	if h.timeout <= 0 {
		h.timeout = defaultHealthTimeout
	}
	return h.check
}

type health struct {
	client  *clientv3.Client
	key     string
	timeout time.Duration

	mu      sync.Mutex
	asked   time.Time     // when the last question was put; guarded by mu
	pending chan struct{} // closed when it is answered; guarded by mu
	last    error         // the last answer; guarded by mu
}

func (h *health) check(ctx context.Context) error {
	h.mu.Lock()
	if pending := h.pending; pending != nil {
		// Another call is in flight; use its result.
		h.mu.Unlock()
		select {
		case <-pending:
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.last
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if !h.asked.IsZero() && time.Since(h.asked) < h.timeout/2 {
		defer h.mu.Unlock()
		return h.last
	}
	pending := make(chan struct{})
	h.asked, h.pending = time.Now(), pending
	h.mu.Unlock()

	// Do not use the caller's context, since other callers share the result.
	err := h.ask(context.WithoutCancel(ctx))

	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.pending = err, nil
	close(pending)
	return err
}

func (h *health) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	_, err := h.client.Get(ctx, h.key)
	if err == nil || errors.Is(err, rpctypes.ErrPermissionDenied) {
		// A denied permission shows that etcd is available.
		return nil
	}
	return fmt.Errorf("get from etcd: %w", err)
}

package etcdstore

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// freshPoll is the interval at which a read that waits for a future revision asks
	// etcd for its revision.
	freshPoll = 50 * time.Millisecond
	// freshRetryAfter, in seconds, is the retry hint of kube-apiserver's watch cache for a
	// resourceVersion that was not reached in time.
	freshRetryAfter = 1
)

// awaitRevision waits until etcd has reached a revision. If that takes longer than
// freshTimeout, the error is the timeout "Too large resource version". Reads from etcd are
// current, so this waits only for a version of another cluster or an invented one.
func (s *Store) awaitRevision(ctx context.Context, want int64) error {
	deadline := s.clock.NewTimer(s.freshTimeout)
	defer deadline.Stop()
	for {
		current, err := s.currentRevision(ctx)
		if err != nil {
			return err
		}
		if current >= want {
			return nil
		}
		poll := s.clock.NewTimer(freshPoll)
		select {
		case <-poll.C():
		case <-deadline.C():
			poll.Stop()
			return storage.NewTooLargeResourceVersionError(uint64(want), uint64(current), freshRetryAfter)
		case <-ctx.Done():
			poll.Stop()
			return ctx.Err()
		}
	}
}

type withoutCacheWait struct{}

// WithoutCacheWait returns a context for a read that has already waited for the cache for as
// long as it may. If the cache is still behind, a consistent LIST reads etcd at once.
func WithoutCacheWait(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutCacheWait{}, true)
}

// MayWaitForCache reports whether a read may wait for the cache.
func MayWaitForCache(ctx context.Context) bool { return ctx.Value(withoutCacheWait{}) == nil }

// tooLarge returns the error of kube-apiserver without a watch cache, which neither waits
// nor has a retry hint.
func tooLarge(want, current int64) error {
	return storage.NewTooLargeResourceVersionError(uint64(want), uint64(current), 0)
}

func invalidResourceVersion(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

package etcdstore

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// freshPoll is the time between two looks at etcd's revision while a read
	// waits for one that does not exist yet.
	freshPoll = 50 * time.Millisecond
	// freshRetryAfter, in seconds, is what kube-apiserver's watch cache tells
	// clients whose resourceVersion did not come in time.
	freshRetryAfter = 1
)

// awaitRevision waits until etcd has reached a revision. If that takes longer
// than freshTimeout the error is the timeout that clients know as "Too large
// resource version". Revisions are never skipped, so this only waits for a
// version that came from another cluster, or that was made up.
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

type outOfPatience struct{}

// OutOfPatience returns a context for a read that has already waited for the cache for as
// long as it may. If the cache is still behind, a consistent LIST reads etcd at once.
func OutOfPatience(ctx context.Context) context.Context {
	return context.WithValue(ctx, outOfPatience{}, true)
}

// HasPatience reports whether a read may wait for the cache.
func HasPatience(ctx context.Context) bool { return ctx.Value(outOfPatience{}) == nil }

// tooLarge is the refusal that does not wait. kube-apiserver gives it, without
// a retry hint, where it bypasses its watch cache.
func tooLarge(want, current int64) error {
	return storage.NewTooLargeResourceVersionError(uint64(want), uint64(current), 0)
}

func invalidResourceVersion(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

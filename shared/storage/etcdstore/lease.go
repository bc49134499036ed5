package etcdstore

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/utils/clock"
)

const (
	defaultLeaseObjects = 1000
	// leaseReuseShare bounds how much longer than asked an object may live, as
	// a share of its time to live.
	leaseReuseShare = 0.05
)

type granter interface {
	Grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error)
}

// leaseSharer lets objects that expire at about the same time share one lease,
// since a lease costs etcd more than the object. Only the newest lease is kept
// for sharing: all objects of a resource tend to have the same time to live.
type leaseSharer struct {
	etcd    granter
	reuse   time.Duration
	objects int64
	clock   clock.PassiveClock

	mu      sync.Mutex
	id      clientv3.LeaseID // guarded by mu, as the following
	expires time.Time
	used    int64
}

func newLeaseSharer(etcd granter, reuse time.Duration, objects int64, c clock.PassiveClock) *leaseSharer {
	if objects <= 0 {
		objects = defaultLeaseObjects
	}
	return &leaseSharer{etcd: etcd, reuse: reuse, objects: objects, clock: c}
}

// lease returns a lease that ends no earlier than ttl from now. Concurrent
// callers wait for one grant instead of making one each.
func (l *leaseSharer) lease(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	extra := l.extra(ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if l.used < l.objects && shareable(now, ttl, extra, l.expires) {
		l.used++
		return l.id, nil
	}
	id, err := l.etcd.Grant(ctx, ttl+extra)
	if err != nil {
		return 0, err
	}
	if l.used > 0 {
		metrics.UpdateLeaseObjectCount(l.used)
	}
	l.id, l.expires, l.used = id, now.Add(ttl+extra), 1
	return id, nil
}

// extra returns by how much a new lease exceeds ttl, in whole seconds, so that later objects
// can share it.
func (l *leaseSharer) extra(ttl time.Duration) time.Duration {
	share := time.Duration(leaseReuseShare * float64(ttl)).Truncate(time.Second)
	return min(share, l.reuse)
}

// shareable reports whether a lease that ends at expires may be used for an object with the
// given time to live: it must not end too early, or needlessly late.
func shareable(now time.Time, ttl, extra time.Duration, expires time.Time) bool {
	return now.Add(ttl).Before(expires) && !now.Add(ttl+extra).Before(expires)
}

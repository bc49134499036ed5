package etcdstore

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	flowcontrol "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/klog/v2"
)

// countTimeout bounds the counting of one resource.
const countTimeout = 10 * time.Second

// counter keeps the object counts of all resources up to date: the metrics
// apiserver_storage_objects, apiserver_resource_objects and
// apiserver_resource_size_estimate_bytes, and the tracker by which priority and
// fairness estimates the cost of a LIST. One goroutine serves them all, where
// the generic registry starts one per resource.
type counter struct {
	wake chan struct{} // has room for one; a resource was added

	mu        sync.Mutex
	resources map[schema.GroupResource]*counted // guarded by mu
}

type counted struct {
	users   int // Stores of the same resource, by several API versions
	stats   func(context.Context) (storage.Stats, error)
	tracker flowcontrol.StorageObjectCountTracker // may be nil
	period  time.Duration
	next    time.Time
}

func newCounter() *counter {
	return &counter{wake: make(chan struct{}, 1), resources: map[schema.GroupResource]*counted{}}
}

// add counts a resource from now on, until the returned function is called as
// often as add was.
func (c *counter) add(gr schema.GroupResource, period time.Duration, tracker flowcontrol.StorageObjectCountTracker,
	stats func(context.Context) (storage.Stats, error)) (remove func()) {
	if period <= 0 {
		return func() {}
	}
	c.mu.Lock()
	r, ok := c.resources[gr]
	if !ok {
		r = &counted{}
		c.resources[gr] = r
	}
	r.users++
	r.stats, r.tracker, r.period = stats, tracker, period
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return sync.OnceFunc(func() { c.remove(gr) })
}

func (c *counter) remove(gr schema.GroupResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.resources[gr]
	if !ok {
		return
	}
	if r.users--; r.users == 0 {
		delete(c.resources, gr)
		metrics.DeleteStoreStats(gr)
	}
}

// run counts until the context is done.
func (c *counter) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		pause := c.round(ctx, time.Now())
		timer.Reset(pause)
	}
}

// round counts the resources that are due, and returns the time until the next one is.
func (c *counter) round(ctx context.Context, now time.Time) time.Duration {
	for gr, r := range c.due(now) {
		if ctx.Err() != nil {
			break
		}
		count(ctx, gr, r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pause := time.Minute
	for _, r := range c.resources {
		pause = min(pause, time.Until(r.next))
	}
	return max(pause, 0)
}

// due returns copies of the resources to be counted now, and schedules their next counts.
// The jitter spreads resources that were added together, and API servers that
// were started together.
func (c *counter) due(now time.Time) map[schema.GroupResource]counted {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := map[schema.GroupResource]counted{}
	for gr, r := range c.resources {
		if !r.next.After(now) {
			r.next = now.Add(wait.Jitter(r.period, 0.5))
			due[gr] = *r
		}
	}
	return due
}

func count(ctx context.Context, gr schema.GroupResource, r counted) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	stats, err := r.stats(ctx)
	metrics.UpdateStoreStats(gr, stats, err)
	if err != nil {
		klog.V(5).InfoS("objects could not be counted", "group", gr.Group, "resource", gr.Resource, "err", err)
		return
	}
	if r.tracker != nil {
		r.tracker.Set(gr.String(), stats)
	}
}

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// CompactKey is where all API servers of an etcd, kube-apiserver included,
	// agree on who compacts. Its value is the revision compacted to, its version
	// counts the rounds.
	CompactKey = "compact_rev_key"
	// compactPollInterval is the interval at which that key is read. kube-apiserver's
	// watch cache asks for the compacted revision every 15 s. A watch would be another
	// load on etcd for each process.
	compactPollInterval = 5 * time.Second
	// compactPollTimeout bounds one look.
	compactPollTimeout = 5 * time.Second
)

// Compactor removes the history of an etcd that is older than an interval
// (--etcd-compaction-interval), and observes the compactions of other API servers.
//
// Once per interval each API server tries to advance the version of CompactKey from the one
// it saw last. The one that succeeds compacts to the revision that the store had one
// interval before; the others record the version and the revision for their next try. So
// there is one compaction per interval, and history lasts for one to two intervals when the
// server that compacted dies.
//
// If etcd denies the permission, as it does to all users but root, etcd must compact by
// itself, and the Compactor stops trying.
type Compactor struct {
	client    *clientv3.Client
	interval  time.Duration
	clock     clock.Clock
	compacted atomic.Int64
}

var _ CompactionSource = (*Compactor)(nil)

// NewCompactor makes a Compactor for one etcd. With an interval of 0 it only
// observes the others.
func NewCompactor(client *clientv3.Client, interval time.Duration) *Compactor {
	return &Compactor{client: client, interval: interval, clock: clock.RealClock{}}
}

// CompactRevision implements CompactionSource: the newest compaction that this
// or another API server is known to have made, 0 before the first.
func (c *Compactor) CompactRevision() int64 { return c.compacted.Load() }

// Run compacts and observes until the context is done, which is no error. A
// failing etcd is logged and tried again.
func (c *Compactor) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { c.observe(ctx); return nil })
	if c.interval > 0 {
		g.Go(func() error { c.compact(ctx); return nil })
	}
	return g.Wait()
}

// round is the state of a Compactor between two tries.
type round struct {
	// version of CompactKey as last seen, 0 if the key did not exist.
	version int64
	// revision of the store at that time, 0 at first.
	revision int64
}

func (c *Compactor) compact(ctx context.Context) {
	var r round
	for sleep(ctx, c.clock, c.interval) {
		next, compacted, err := try(ctx, c.client, r)
		if errors.Is(err, rpctypes.ErrPermissionDenied) {
			klog.InfoS("etcd does not let this user compact; it must do so by itself (etcd --auto-compaction-retention)", "endpoints", c.client.Endpoints())
			return
		}
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "compaction of etcd failed", "endpoints", c.client.Endpoints())
		}
		r = next
		c.learn(compacted)
	}
}

// try takes one turn. It returns what to remember and the revision that is now
// known to be compacted, 0 if there is none.
func try(ctx context.Context, client *clientv3.Client, r round) (next round, compacted int64, err error) {
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(CompactKey), "=", r.version)).
		Then(clientv3.OpPut(CompactKey, strconv.FormatInt(r.revision, 10))).
		Else(clientv3.OpGet(CompactKey)).
		Commit()
	if err != nil {
		// If the write did happen, the next try fails and starts over.
		return r, 0, fmt.Errorf("advance %s: %w", CompactKey, err)
	}
	next.revision = resp.Header.GetRevision()
	if !resp.Succeeded {
		if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			next.version = kvs[0].Version
			compacted, _ = parseCompacted(kvs[0])
		}
		return next, compacted, nil
	}
	next.version = r.version + 1
	if r.revision == 0 {
		return next, 0, nil // the first turn has no revision to compact to
	}
	if _, err := client.Compact(ctx, r.revision); err != nil {
		return next, 0, fmt.Errorf("compact to revision %d: %w", r.revision, err)
	}
	klog.V(4).InfoS("compacted etcd", "revision", r.revision)
	return next, r.revision, nil
}

// observe looks at the key now and then for as long as the context lives.
func (c *Compactor) observe(ctx context.Context) {
	for {
		if err := c.poll(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "cannot observe compactions of etcd", "endpoints", c.client.Endpoints())
		}
		if !sleep(ctx, c.clock, compactPollInterval) {
			return
		}
	}
}

// poll learns of compactions by others. Any member may answer: one that is behind returns
// an older compaction, which is also true.
func (c *Compactor) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, compactPollTimeout)
	defer cancel()
	resp, err := c.client.Get(ctx, CompactKey, clientv3.WithSerializable())
	if err != nil {
		return fmt.Errorf("get %s: %w", CompactKey, err)
	}
	for _, item := range resp.Kvs {
		if rev, err := parseCompacted(item); err == nil {
			c.learn(rev)
		}
	}
	return nil
}

// learn raises the known compaction; it never goes back.
func (c *Compactor) learn(rev int64) {
	for {
		known := c.compacted.Load()
		if rev <= known || c.compacted.CompareAndSwap(known, rev) {
			return
		}
	}
}

func parseCompacted(item *mvccpb.KeyValue) (int64, error) {
	return strconv.ParseInt(string(item.Value), 10, 64)
}

// sleep waits and returns true, or false as soon as the context is done.
func sleep(ctx context.Context, c clock.Clock, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

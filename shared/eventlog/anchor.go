package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// anchor is a write of the relay to a key of its own. An etcd that was restored from
// a backup lacks it, or has something else at its revision, even if nothing that a
// stream tells has changed since the backup. A restored etcd that does have it can
// differ only after it: there a stream and etcd are compared event by event.
//
// Progress carries the last anchor, so that whoever reads the stream can tell, now
// or later, whether etcd still has the history that the stream tells.
type anchor struct {
	Revision int64
	// Nonce is the value, a random number.
	Nonce uint64
}

// anchorInterval is the time between two anchors. Where nothing has been written
// since the last one, none is.
const anchorInterval = 5 * time.Second

func anchorKey(keys string) string { return keys + "anchor" }

// finding is what etcd says about an anchor.
type finding int

const (
	// unknown: there is no anchor, or etcd has compacted it.
	unknown finding = iota
	// confirmed: etcd has the anchor, and all that came after it.
	confirmed
	// refuted: etcd has another history.
	refuted
)

// find asks etcd for an anchor.
func (a anchor) find(ctx context.Context, etcd *clientv3.Client, keys string) (finding, error) {
	if a.Revision == 0 {
		return unknown, nil
	}
	resp, err := etcd.Get(ctx, anchorKey(keys), clientv3.WithRev(a.Revision))
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		return refuted, nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return a.findLast(ctx, etcd, keys)
	case err != nil:
		return unknown, fmt.Errorf("read anchor at revision %d: %w", a.Revision, err)
	case !a.is(resp):
		return refuted, nil
	}
	return confirmed, nil
}

// findLast asks for an anchor whose revision is compacted. Anchors only follow each
// other: a last one from before it belongs to another history.
func (a anchor) findLast(ctx context.Context, etcd *clientv3.Client, keys string) (finding, error) {
	resp, err := etcd.Get(ctx, anchorKey(keys))
	switch {
	case err != nil:
		return unknown, fmt.Errorf("read anchor: %w", err)
	case len(resp.Kvs) == 0, resp.Kvs[0].ModRevision < a.Revision, resp.Kvs[0].ModRevision == a.Revision && !a.is(resp):
		return refuted, nil
	}
	return unknown, nil
}

// is reports whether an answer of etcd shows the anchor.
func (a anchor) is(resp *clientv3.GetResponse) bool {
	return len(resp.Kvs) == 1 && resp.Kvs[0].ModRevision == a.Revision && string(resp.Kvs[0].Value) == a.value()
}

func (a anchor) value() string { return strconv.FormatUint(a.Nonce, 16) }

// drop writes an anchor behind the last one, if that is still there. It fails with
// errReplaced if it is not: nobody but the elected relay writes anchors.
func (a anchor) drop(ctx context.Context, e *election, keys string) (anchor, error) {
	next := anchor{Nonce: randomID()}
	if found, err := a.find(ctx, e.etcd, keys); err != nil {
		return anchor{}, err
	} else if found == refuted {
		return anchor{}, errReplaced
	}
	resp, err := e.guard(ctx, clientv3.OpPut(anchorKey(keys), next.value()))
	if err != nil {
		return anchor{}, err
	}
	next.Revision = resp.Header.GetRevision()
	return next, nil
}

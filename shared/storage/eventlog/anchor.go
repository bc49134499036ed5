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

// anchor is a write of the relay to a key of its own. An etcd that was restored from a backup
// lacks it, or has something else at its revision, even if no key of a stream has
// changed since the backup. A restored etcd that does have the anchor can differ only after it:
// there, stream and etcd are compared event by event.
//
// Progress messages carry the last anchor, so that every reader of the stream can check, now or
// later, whether etcd still has the history of the stream.
type anchor struct {
	Revision int64
	// Nonce is the value of the key, a random number.
	Nonce uint64
}

// anchorInterval is the time between two anchors. No anchor is written while nothing else has
// been written since the last one.
const anchorInterval = 5 * time.Second

func anchorKey(statePrefix string) string { return statePrefix + "anchor" }

// finding is the result of checking an anchor.
type finding int

const (
	// unknown: there is no anchor, or etcd has compacted it.
	unknown finding = iota
	// confirmed: etcd has the anchor, and the history after it.
	confirmed
	// refuted: etcd has another history.
	refuted
)

// check looks the anchor up in etcd.
func (a anchor) check(ctx context.Context, etcd *clientv3.Client, statePrefix string) (finding, error) {
	if a.Revision == 0 {
		return unknown, nil
	}
	resp, err := etcd.Get(ctx, anchorKey(statePrefix), clientv3.WithRev(a.Revision))
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		return refuted, nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return a.checkLatest(ctx, etcd, statePrefix)
	case err != nil:
		return unknown, fmt.Errorf("read anchor at revision %d: %w", a.Revision, err)
	case !a.matches(resp):
		return refuted, nil
	}
	return confirmed, nil
}

// checkLatest checks an anchor whose revision is compacted. Anchors only move forward: if
// etcd's latest anchor is older, it belongs to another history.
func (a anchor) checkLatest(ctx context.Context, etcd *clientv3.Client, statePrefix string) (finding, error) {
	resp, err := etcd.Get(ctx, anchorKey(statePrefix))
	switch {
	case err != nil:
		return unknown, fmt.Errorf("read anchor: %w", err)
	case len(resp.Kvs) == 0, resp.Kvs[0].ModRevision < a.Revision, resp.Kvs[0].ModRevision == a.Revision && !a.matches(resp):
		return refuted, nil
	}
	return unknown, nil
}

// matches reports whether a response of etcd shows the anchor.
func (a anchor) matches(resp *clientv3.GetResponse) bool {
	return len(resp.Kvs) == 1 && resp.Kvs[0].ModRevision == a.Revision && string(resp.Kvs[0].Value) == a.value()
}

func (a anchor) value() string { return strconv.FormatUint(a.Nonce, 16) }

// write writes the next anchor if etcd still has this one. Otherwise it returns errReplaced,
// because only the elected relay writes anchors.
func (a anchor) write(ctx context.Context, e *election, statePrefix string) (anchor, error) {
	next := anchor{Nonce: randomID()}
	if found, err := a.check(ctx, e.etcd, statePrefix); err != nil {
		return anchor{}, err
	} else if found == refuted {
		return anchor{}, errReplaced
	}
	resp, err := e.guard(ctx, clientv3.OpPut(anchorKey(statePrefix), next.value()))
	if err != nil {
		return anchor{}, err
	}
	next.Revision = resp.Header.GetRevision()
	return next, nil
}

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// campaignPause is the polling interval of a candidate.
const campaignPause = 500 * time.Millisecond

// election is a campaign for a key that exists while a relay is elected. The key has the lease
// of that relay (RelayConfig.LeaseTTL), so it disappears when the relay dies or revokes the
// lease. Candidates poll the key. A watch, as in etcd's own recipe, would notice sooner, but
// cost etcd one more watch per candidate.
type election struct {
	etcd     *clientv3.Client
	key      string
	identity string
	session  *concurrency.Session
	// revision is the one at which this relay was elected. It is unique.
	revision int64
}

// errSessionOver means that the lease has expired.
var errSessionOver = errors.New("session is over")

// campaign returns nil when this relay is elected. It fails when etcd does not answer, when the
// session is over, or when the context ends.
func (e *election) campaign(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-e.session.Done():
			return errSessionOver
		case <-ctx.Done():
			return ctx.Err()
		}
		elected, err := e.tryAcquire(ctx)
		if err != nil || elected {
			return err
		}
		pause.Reset(campaignPause)
	}
}

// tryAcquire takes the key if it does not exist.
func (e *election) tryAcquire(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	// A refused transaction that could have written costs etcd a round among its members and an
	// entry in its log; this read costs neither.
	existing, err := e.etcd.Get(ctx, e.key, clientv3.WithSerializable(), clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("read %s: %w", e.key, err)
	}
	if existing.Count > 0 {
		return false, nil
	}
	resp, err := e.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0)).
		Then(clientv3.OpPut(e.key, e.identity, clientv3.WithLease(e.session.Lease()))).
		Commit()
	if err != nil {
		// If the transaction was applied all the same, the key disappears with the lease, which
		// the caller revokes.
		return false, fmt.Errorf("take %s: %w", e.key, err)
	}
	if resp.Succeeded {
		e.revision = resp.Header.GetRevision()
	}
	return resp.Succeeded, nil
}

// isHolder returns the conditions under which this relay is elected, for a transaction. They
// include the lease: in an etcd that was restored from a backup, another relay may have been
// elected at the same revision.
func (e *election) isHolder() []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.revision),
		clientv3.Compare(clientv3.LeaseValue(e.key), "=", e.session.Lease()),
	}
}

// guard runs ops in a transaction if this relay is elected, and otherwise returns errDeposed.
// Every irreversible step follows a guard, with or without ops.
func (e *election) guard(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	resp, err := e.etcd.Txn(ctx).If(e.isHolder()...).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("confirm the election: %w", err)
	}
	if !resp.Succeeded {
		return nil, errDeposed
	}
	return resp, nil
}

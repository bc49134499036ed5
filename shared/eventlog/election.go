package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// campaignPause is the time between two looks of a candidate at who is elected.
const campaignPause = 500 * time.Millisecond

// election is a key that exists while a relay is the elected one: with its lease,
// so that it goes when the relay dies or gives the lease back. A candidate looks
// at it now and then. A watch, as in etcd's own recipe, would tell him at once, but
// etcd would have one more for each candidate.
type election struct {
	etcd     *clientv3.Client
	key      string
	identity string
	session  *concurrency.Session
	// revision at which this relay was elected, which no other one has.
	revision int64
}

// errSessionOver means that the lease has ended.
var errSessionOver = errors.New("session is over")

// campaign returns when this relay is elected. It fails when etcd does not answer,
// when the session is over, and with the context.
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
		elected, err := e.try(ctx)
		if err != nil || elected {
			return err
		}
		pause.Reset(campaignPause)
	}
}

// try takes the key if nobody has it.
func (e *election) try(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	// A refused transaction that could have written costs etcd a round among its
	// members and a write to its log, a look costs neither.
	held, err := e.etcd.Get(ctx, e.key, clientv3.WithSerializable(), clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", e.key, err)
	}
	if held.Count > 0 {
		return false, nil
	}
	resp, err := e.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0)).
		Then(clientv3.OpPut(e.key, e.identity, clientv3.WithLease(e.session.Lease()))).
		Commit()
	if err != nil {
		// Should it have been carried out, the key goes with the lease, which the
		// caller gives back.
		return false, fmt.Errorf("take %s: %w", e.key, err)
	}
	if resp.Succeeded {
		e.revision = resp.Header.GetRevision()
	}
	return resp.Succeeded, nil
}

// holds is true, in a transaction, while this relay is the elected one. The lease
// is compared, too: in an etcd that was restored from a backup, another relay may
// have been elected at the same revision.
func (e *election) holds() []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.revision),
		clientv3.Compare(clientv3.LeaseValue(e.key), "=", e.session.Lease()),
	}
}

// guard carries out ops if this relay is the elected one, and otherwise fails with
// errDeposed. Whatever cannot be undone follows a guard, even if that has nothing
// else to do.
func (e *election) guard(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	resp, err := e.etcd.Txn(ctx).If(e.holds()...).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("make sure of the election: %w", err)
	}
	if !resp.Succeeded {
		return nil, errDeposed
	}
	return resp, nil
}

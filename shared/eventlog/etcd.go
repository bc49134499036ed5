package eventlog

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/etcdstore/kv"
)

// DefaultKeys is where the relay keeps its own keys. They stand beside the keys
// whose changes are published, so that they are no events themselves.
const DefaultKeys = "/triune/eventlog/"

// position is a revision of one etcd cluster.
type position struct {
	cluster  uint64
	revision int64
}

// currentPosition reads it linearizably.
func currentPosition(ctx context.Context, etcd *clientv3.Client, key string) (position, error) {
	resp, err := etcd.Get(ctx, key, clientv3.WithCountOnly())
	if err != nil {
		return position{}, fmt.Errorf("read revision: %w", err)
	}
	return position{cluster: resp.Header.GetClusterId(), revision: resp.Header.GetRevision()}, nil
}

// incarnations are kept in etcd, so that a stream whose data is lost goes on
// with the same one, and a restored etcd shows another one than its stream
// where it can. The value is the incarnation and the ID of the cluster.
type incarnations struct {
	etcd *clientv3.Client
	keys string
}

// current returns a stream's incarnation, which it makes if there is none.
func (i incarnations) current(ctx context.Context, stream string) (uint64, error) {
	incarnation, cluster, err := i.read(ctx, stream)
	if err != nil || incarnation != 0 {
		return incarnation, err
	}
	return i.renew(ctx, stream, cluster)
}

// known returns a stream's incarnation, 0 if there is none.
func (i incarnations) known(ctx context.Context, stream string) (uint64, error) {
	incarnation, _, err := i.read(ctx, stream)
	return incarnation, err
}

func (i incarnations) read(ctx context.Context, stream string) (incarnation, cluster uint64, err error) {
	resp, err := i.etcd.Get(ctx, i.key(stream))
	if err != nil {
		return 0, 0, fmt.Errorf("read incarnation: %w", err)
	}
	cluster = resp.Header.GetClusterId()
	if len(resp.Kvs) == 0 {
		return 0, cluster, nil
	}
	value, of, _ := strings.Cut(string(resp.Kvs[0].Value), " ")
	if of != strconv.FormatUint(cluster, 16) {
		return 0, cluster, nil // another cluster's
	}
	if incarnation, err = strconv.ParseUint(value, 16, 64); err != nil {
		return 0, cluster, nil // nobody's: it is made anew
	}
	return incarnation, cluster, nil
}

// renew gives a stream another incarnation.
func (i incarnations) renew(ctx context.Context, stream string, cluster uint64) (uint64, error) {
	incarnation := randomID()
	_, err := i.etcd.Put(ctx, i.key(stream), strconv.FormatUint(incarnation, 16)+" "+strconv.FormatUint(cluster, 16))
	if err != nil {
		return 0, fmt.Errorf("write incarnation: %w", err)
	}
	return incarnation, nil
}

func (i incarnations) key(stream string) string { return i.keys + "incarnation/" + stream }

func randomID() uint64 {
	var b [8]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if id := binary.BigEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

// contradicts tells whether etcd's history lacks an event that a stream tells:
// after a restore from a backup other changes have the same revisions. History
// that is compacted contradicts nothing.
func contradicts(ctx context.Context, etcd *clientv3.Client, e *kv.Event) (bool, error) {
	at := func(revision int64) (*kv.KeyValue, error) {
		resp, err := etcd.Get(ctx, e.Key, clientv3.WithRev(revision))
		if err != nil || len(resp.Kvs) == 0 {
			return nil, err
		}
		return resp.Kvs[0], nil
	}
	after, err := at(e.Revision)
	if err == nil && e.Kind == kv.Deleted {
		var before *kv.KeyValue
		if after != nil {
			return true, nil
		}
		if before, err = at(e.Revision - 1); err == nil {
			return before == nil || !bytes.Equal(before.Value, e.Previous), nil
		}
	}
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return false, nil
	case errors.Is(err, rpctypes.ErrFutureRev):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read %s at revision %d: %w", e.Key, e.Revision, err)
	}
	return after == nil || after.ModRevision != e.Revision || !bytes.Equal(after.Value, e.Value), nil
}

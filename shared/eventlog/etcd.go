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

// record is what etcd knows about a stream. It is kept there so that a stream whose
// data is lost can be told from one that follows another history.
type record struct {
	// Incarnation is that of the stream: the messages of any other one are not
	// believed. History stands for one history of etcd. A stream that is made anew
	// gets another incarnation, and another history only if etcd has one.
	Incarnation, History uint64
	// Revision is etcd's when it was written.
	Revision int64
}

// records are kept in etcd, below the relay's keys. The value is in hexadecimal:
// incarnation, cluster ID, and history.
type records struct {
	etcd *clientv3.Client
	keys string
}

// read returns a stream's record, which is zero where there is none, or only one
// of another cluster.
func (r records) read(ctx context.Context, stream string) (found record, cluster uint64, err error) {
	resp, err := r.etcd.Get(ctx, r.key(stream))
	if err != nil {
		return record{}, 0, fmt.Errorf("read incarnation: %w", err)
	}
	cluster = resp.Header.GetClusterId()
	if len(resp.Kvs) == 0 {
		return record{}, cluster, nil
	}
	var fields [3]uint64
	for i, field := range strings.Fields(string(resp.Kvs[0].Value)) {
		if i == len(fields) {
			break
		}
		if fields[i], err = strconv.ParseUint(field, 16, 64); err != nil {
			return record{}, cluster, nil // nobody's: it is made anew
		}
	}
	if fields[1] != cluster {
		return record{}, cluster, nil
	}
	found = record{Incarnation: fields[0], History: fields[2], Revision: resp.Kvs[0].ModRevision}
	if found.History == 0 { // written before histories were
		found.History = found.Incarnation
	}
	return found, cluster, nil
}

// put returns the write of a record.
func (r records) put(stream string, value record, cluster uint64) clientv3.Op {
	return clientv3.OpPut(r.key(stream), fmt.Sprintf("%x %x %x", value.Incarnation, cluster, value.History))
}

func (r records) key(stream string) string { return r.keys + "incarnation/" + stream }

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

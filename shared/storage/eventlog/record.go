package eventlog

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// DefaultStatePrefix is the default prefix of the relay's own keys. It lies outside the keys
// whose changes are published, so that the relay's writes are not events themselves.
const DefaultStatePrefix = "/triune/eventlog/"

// record describes a stream. It is stored in etcd, to tell a stream that lost its data from one
// that follows another history.
type record struct {
	// Incarnation identifies the stream; messages of any other incarnation are refused. History
	// identifies one history of etcd. A recreated stream gets a new incarnation, and a new
	// history only if etcd's history was replaced.
	Incarnation, History uint64
	// Revision is the etcd revision at which the record was written.
	Revision int64
}

// records stores the records in etcd, below the relay's prefix. The value is incarnation,
// cluster ID and history, in hexadecimal.
type records struct {
	etcd   *clientv3.Client
	prefix string
}

// read returns the record of a stream. It is zero if there is none, or only one of another
// cluster.
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
			return record{}, cluster, nil // not a valid record: the stream gets a new one
		}
	}
	if fields[1] != cluster {
		return record{}, cluster, nil
	}
	found = record{Incarnation: fields[0], History: fields[2], Revision: resp.Kvs[0].ModRevision}
	if found.History == 0 { // written by a version that had no histories
		found.History = found.Incarnation
	}
	return found, cluster, nil
}

// put returns the operation that writes a record.
func (r records) put(stream string, value record, cluster uint64) clientv3.Op {
	return clientv3.OpPut(r.key(stream), fmt.Sprintf("%x %x %x", value.Incarnation, cluster, value.History))
}

func (r records) key(stream string) string { return r.prefix + "incarnation/" + stream }

func randomID() uint64 {
	var b [8]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if id := binary.BigEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

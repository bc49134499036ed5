package twins

import (
	"bytes"
	"context"
	"encoding/binary"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// replay repeats the changes of the story in both etcds. It returns false if the revisions
// differ.
func (w *twins) replay(t *testing.T) bool {
	t.Helper()
	same := true
	for _, e := range w.content.events {
		var at [2]int64
		for i, b := range w.both {
			var err error
			at[i], err = apply(t.Context(), b.etcd, e)
			if err != nil {
				t.Fatal(err)
			}
		}
		same = same && cmp.Equal(at[0], at[1])
	}
	return same
}

func apply(ctx context.Context, etcd *clientv3.Client, e *clientv3.Event) (int64, error) {
	key := string(e.Kv.Key)
	if e.Type == mvccpb.DELETE {
		resp, err := etcd.Delete(ctx, key)
		if err != nil {
			return 0, err
		}
		return resp.Header.Revision, nil
	}
	resp, err := etcd.Put(ctx, key, aged(e.Kv.Value))
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// textTime matches the date of a time in JSON or CBOR. In CBOR, the byte before it, with the
// length, is a letter.
var textTime = regexp.MustCompile(`20\d\d-\d\d-\d\dT`)

// aged makes a stored object some years older, so that Tables made a second apart show the
// same age. It preserves the size.
func aged(value []byte) string {
	const years = 4 * 365 * 24 * time.Hour
	if !bytes.HasPrefix(value, []byte("k8s\x00")) {
		return string(textTime.ReplaceAll(value, []byte("2020-01-01T")))
	}
	out := bytes.Clone(value)
	now := time.Now()
	// A time is a message of seconds, field 1, and nanoseconds, field 2.
	for i := range out {
		if out[i] != 1<<3 {
			continue
		}
		seconds, n := binary.Uvarint(out[i+1:])
		if n > 0 && now.Sub(time.Unix(int64(seconds), 0)).Abs() < 24*time.Hour && bytes.HasPrefix(out[i+1+n:], []byte{2 << 3, 0}) {
			binary.PutUvarint(out[i+1:], uint64(time.Unix(int64(seconds), 0).Add(-years).Unix()))
		}
	}
	return string(out)
}

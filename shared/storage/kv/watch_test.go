package kv

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func put(key, value string, create, mod int64, prev *mvccpb.KeyValue) *clientv3.Event {
	return &clientv3.Event{
		Type:   clientv3.EventTypePut,
		Kv:     &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: create, ModRevision: mod},
		PrevKv: prev,
	}
}

func deletion(key string, mod int64, prev *mvccpb.KeyValue) *clientv3.Event {
	return &clientv3.Event{
		Type:   clientv3.EventTypeDelete,
		Kv:     &mvccpb.KeyValue{Key: []byte(key), ModRevision: mod},
		PrevKv: prev,
	}
}

func TestParse(t *testing.T) {
	prev := &mvccpb.KeyValue{Value: []byte("before")}
	header := func(rev int64) etcdserverpb.ResponseHeader { return etcdserverpb.ResponseHeader{Revision: rev} }
	for _, tc := range []struct {
		name    string
		resp    clientv3.WatchResponse
		after   int64
		want    Batch
		missing []string
	}{
		{
			name:  "progress is complete up to the header's revision",
			resp:  clientv3.WatchResponse{Header: header(7)},
			after: 5,
			want:  Batch{Revision: 7, Progress: true},
		},
		{
			name:  "the acknowledgement of a watch is no progress",
			resp:  clientv3.WatchResponse{Header: header(7), Created: true},
			after: 5,
			want:  Batch{Revision: 5},
		},
		{
			name: "events are complete up to the last one, whatever the header says",
			resp: clientv3.WatchResponse{Header: header(99), Events: []*clientv3.Event{
				put("a", "1", 6, 6, nil),
				put("b", "2", 3, 7, prev),
				deletion("c", 7, prev),
			}},
			after: 5,
			want: Batch{Revision: 7, Events: []Event{
				{Kind: Created, Key: "a", Revision: 6, Value: []byte("1")},
				{Kind: Modified, Key: "b", Revision: 7, Value: []byte("2"), Previous: []byte("before")},
				{Kind: Deleted, Key: "c", Revision: 7, Previous: []byte("before")},
			}},
		},
		{
			name: "keys without a previous value are listed",
			resp: clientv3.WatchResponse{Header: header(9), Events: []*clientv3.Event{
				put("a", "1", 6, 6, nil),
				put("b", "2", 3, 7, nil),
				deletion("c", 8, nil),
			}},
			after: 5,
			want: Batch{Revision: 8, Events: []Event{
				{Kind: Created, Key: "a", Revision: 6, Value: []byte("1")},
				{Kind: Modified, Key: "b", Revision: 7, Value: []byte("2")},
				{Kind: Deleted, Key: "c", Revision: 8},
			}},
			missing: []string{"b", "c"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, missing := parse(tc.resp, tc.after)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("batch (-want +got):\n%s", diff)
			}
			var keys []string
			for _, e := range missing {
				keys = append(keys, e.Key)
			}
			if diff := cmp.Diff(tc.missing, keys); diff != "" {
				t.Errorf("missing previous values (-want +got):\n%s", diff)
			}
		})
	}
}

package eventlog

import (
	"errors"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/testing/etcdtest"
)

func TestAnchorsDetectAReplacedHistory(t *testing.T) {
	server := etcdtest.Start(t)
	e := candidate(t, server, "a")
	if err := e.campaign(t.Context()); err != nil {
		t.Fatal(err)
	}
	const keys = "/test/"
	first, err := anchor{}.write(t.Context(), e, keys)
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.write(t.Context(), e, keys)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when, which string, a anchor, want finding) {
		t.Helper()
		if got, err := a.check(t.Context(), e.etcd, keys); err != nil || got != want {
			t.Errorf("%s, %s: %d, %v; want %d", when, which, got, err, want)
		}
	}
	expect("at once", "none", anchor{}, unknown)
	expect("at once", "the first", first, confirmed)
	expect("at once", "the last", second, confirmed)
	expect("at once", "another one", anchor{second.Revision, second.Nonce + 1}, refuted)
	expect("at once", "one at another revision", anchor{first.Revision + 100, first.Nonce}, refuted)
	now, err := e.etcd.Put(t.Context(), "/other", "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.etcd.Compact(t.Context(), now.Header.Revision); err != nil {
		t.Fatal(err)
	}
	expect("when compacted", "the first", first, unknown)
	expect("when compacted", "the last", second, unknown)
	expect("when compacted", "one with another value", anchor{second.Revision, second.Nonce + 1}, refuted)
	expect("when compacted", "one that came later", anchor{second.Revision + 1, 5}, refuted)
	// An anchor is written only after one that etcd has, and only by the elected relay.
	if _, err := (anchor{second.Revision, second.Nonce + 1}).write(t.Context(), e, keys); !errors.Is(err, errReplaced) {
		t.Errorf("behind another anchor: %v", err)
	}
	if _, err := e.etcd.Delete(t.Context(), e.key); err != nil {
		t.Fatal(err)
	}
	if _, err := second.write(t.Context(), e, keys); !errors.Is(err, errDeposed) {
		t.Errorf("no longer elected: %v", err)
	}
}

func TestRecords(t *testing.T) {
	server := etcdtest.Start(t)
	etcd := server.Dial(t)
	r := records{etcd: etcd, prefix: "/test/"}
	_, cluster, err := r.read(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	written := record{Incarnation: 7, History: 9}
	for _, tc := range []struct {
		name string
		put  clientv3.Op
		want record
	}{
		{"as it is written", r.put("s", written, cluster), written},
		{"before there were histories", clientv3.OpPut(r.key("s"), fmt.Sprintf("7 %x", cluster)), record{Incarnation: 7, History: 7}},
		{"another cluster's", r.put("s", written, cluster+1), record{}},
		{"nobody's", clientv3.OpPut(r.key("s"), "something else"), record{}},
		{"empty", clientv3.OpPut(r.key("s"), ""), record{}},
	} {
		resp, err := etcd.Do(t.Context(), tc.put)
		if err != nil {
			t.Fatal(err)
		}
		if tc.want != (record{}) {
			tc.want.Revision = resp.Put().Header.Revision
		}
		if got, _, err := r.read(t.Context(), "s"); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v; want %+v", tc.name, got, err, tc.want)
		}
	}
}

package etcdstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/apis/example"
	clocktesting "k8s.io/utils/clock/testing"

	"triune.dev/shared/storage/kv"
)

func TestEtcdKey(t *testing.T) {
	for _, tc := range []struct {
		name, prefix, resource, key string
		collection                  bool
		want                        string
	}{
		{"namespaced", "/registry", "/pods", "/pods/ns/a", false, "/registry/pods/ns/a"},
		{"cluster-scoped", "/registry", "/minions", "/minions/n1", false, "/registry/minions/n1"},
		{"a group with a prefix of its own", "/registry", "/services/specs", "/services/specs/ns/a", false, "/registry/services/specs/ns/a"},
		{"custom resource", "/registry", "/example.com/widgets", "/example.com/widgets/ns/a", false, "/registry/example.com/widgets/ns/a"},
		{"prefix without slash", "registry", "/pods", "/pods/ns/a", false, "/registry/pods/ns/a"},
		{"prefix with slash", "/registry/", "/pods", "/pods/ns/a", false, "/registry/pods/ns/a"},
		{"deep prefix", "/a/b", "/pods", "/pods/ns/a", false, "/a/b/pods/ns/a"},
		{"no prefix", "", "/pods", "/pods/ns/a", false, "/pods/ns/a"},
		{"collection", "/registry", "/pods", "/pods", true, "/registry/pods/"},
		{"collection of a namespace", "/registry", "/pods", "/pods/ns", true, "/registry/pods/ns/"},
		{"climbing out", "/registry", "/pods", "/pods/../secrets/a", false, ""},
		{"standing still", "/registry", "/pods", "/pods/./a", false, ""},
		{"another resource", "/registry", "/pods", "/secrets/ns/a", false, ""},
		{"nothing", "/registry", "/pods", "", true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, err := newKeySpace(tc.prefix, tc.resource)
			if err != nil {
				t.Fatal(err)
			}
			got, err := keys.etcdKey(tc.key, tc.collection)
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
	for _, resource := range []string{"", "/", "pods"} {
		if _, err := newKeySpace("/registry", resource); err == nil {
			t.Errorf("resource prefix %q is accepted", resource)
		}
	}
}

func TestPager(t *testing.T) {
	page := func(keys, size int) kv.Page {
		p := kv.Page{KVs: make([]*kv.KeyValue, keys)}
		for i := range p.KVs {
			p.KVs[i] = &kv.KeyValue{Value: make([]byte, size)}
		}
		return p
	}
	selective := newPager(4)
	var sizes []int64
	for range 14 {
		sizes = append(sizes, selective.size)
		selective.after(page(1, 10))
	}
	if diff := cmp.Diff([]int64{4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 10000, 10000}, sizes); diff != "" {
		t.Errorf("pages of a limited list (-want +got):\n%s", diff)
	}
	if large := newPager(50000); large.size != maxPage {
		t.Errorf("with a limit of 50000 etcd is asked for %d keys at once", large.size)
	}
	for _, tc := range []struct {
		name       string
		keys, size int
		want       int64
	}{
		{"small objects", 500, 100, 10000},
		{"objects of 4 KiB", 500, 4096, 4096},
		{"huge objects", 500, 1 << 20, 500},
		{"nothing", 0, 0, 10000},
	} {
		p := newPager(0)
		if p.size != firstPage {
			t.Fatalf("first page of %d", p.size)
		}
		if p.after(page(tc.keys, tc.size)); p.size != tc.want {
			t.Errorf("%s: the next page has %d keys, want %d", tc.name, p.size, tc.want)
		}
	}
}

type fakeGranter struct {
	ttls []time.Duration
	err  error
}

func (g *fakeGranter) Grant(_ context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	if g.err != nil {
		return 0, g.err
	}
	g.ttls = append(g.ttls, ttl)
	return clientv3.LeaseID(len(g.ttls)), nil
}

func TestLeaseSharer(t *testing.T) {
	etcd := &fakeGranter{}
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	l := newLeaseSharer(etcd, time.Minute, 4, clock)
	for _, step := range []struct {
		name    string
		advance time.Duration
		ttl     time.Duration
		want    clientv3.LeaseID
	}{
		{"the first gets its own", 0, time.Hour, 1},
		{"one a moment later shares it", time.Second, time.Hour, 1},
		{"one that lives shorter does not", 0, 50 * time.Minute, 2},
		{"nor one that lives longer", 0, time.Hour, 3},
		{"until it would end too early", 61 * time.Second, time.Hour, 4},
		{"shared by four (2)", 0, time.Hour, 4},
		{"shared by four (3)", 0, time.Hour, 4},
		{"shared by four (4)", 0, time.Hour, 4},
		{"the fifth gets a new one", 0, time.Hour, 5},
		{"short ones get a second of their own", 0, 10 * time.Second, 6},
	} {
		clock.SetTime(clock.Now().Add(step.advance))
		id, err := l.lease(t.Context(), step.ttl)
		if err != nil || id != step.want {
			t.Errorf("%s: lease %d, %v, want %d", step.name, id, err, step.want)
		}
	}
	want := []time.Duration{61 * time.Minute, 51 * time.Minute, 61 * time.Minute, 61 * time.Minute, 61 * time.Minute, 10 * time.Second}
	if diff := cmp.Diff(want, etcd.ttls); diff != "" {
		t.Errorf("granted (-want +got):\n%s", diff)
	}
	etcd.err = errors.New("no")
	if _, err := l.lease(t.Context(), time.Second); err == nil {
		t.Error("a refused lease returned no error")
	}
}

func TestItems(t *testing.T) {
	list := &example.PodList{}
	it, err := newListItems(list)
	if err != nil {
		t.Fatal(err)
	}
	first := it.next().(*example.Pod)
	first.Name = "dropped"
	again := it.next().(*example.Pod)
	if again.Name != "" {
		t.Errorf("the place of a dropped object still has %q", again.Name)
	}
	again.Name = "a"
	it.accept(again)
	other := &example.Pod{}
	other.Name = "b" // a codec that ignores the object to decode into
	it.next()
	it.accept(other)
	it.next().(*example.Pod).Name = "left over"
	it.finish()
	if len(list.Items) != 2 || list.Items[0].Name != "a" || list.Items[1].Name != "b" {
		t.Errorf("items %v", list.Items)
	}
	for _, rest := range list.Items[len(list.Items):cap(list.Items)] {
		if rest.Name != "" {
			t.Errorf("beyond the end there is %q", rest.Name)
		}
	}
	empty := &example.PodList{}
	it, _ = newListItems(empty)
	if it.finish(); empty.Items == nil {
		t.Error("an empty list has null items")
	}
	if _, err := newListItems(&example.Pod{}); err == nil || !strings.Contains(err.Error(), "Items") {
		t.Errorf("a pod is taken for a list: %v", err)
	}
}

func TestUnchanged(t *testing.T) {
	for _, tc := range []struct {
		name string
		st   state
		data string
		want bool
	}{
		{"same bytes", state{data: []byte("x")}, "x", true},
		{"other bytes", state{data: []byte("x")}, "y", false},
		{"same bytes, stored with an old key", state{data: []byte("x"), stale: true}, "x", false},
	} {
		if got := tc.st.unchanged([]byte(tc.data)); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

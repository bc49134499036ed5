package etcdstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
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

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		name        string
		kind        kv.Kind
		now, before bool
		want        Outcome
	}{
		{"created inside", kv.Created, true, false, Outcome{Event: watch.Added}},
		{"created inside, with no selector to judge the past", kv.Created, true, true, Outcome{Event: watch.Added}},
		{"created outside", kv.Created, false, false, Outcome{}},
		{"modified inside", kv.Modified, true, true, Outcome{Event: watch.Modified}},
		{"modified outside", kv.Modified, false, false, Outcome{}},
		{"enters", kv.Modified, true, false, Outcome{Event: watch.Added}},
		{"leaves", kv.Modified, false, true, Outcome{Event: watch.Deleted, Previous: true}},
		{"deleted inside", kv.Deleted, false, true, Outcome{Event: watch.Deleted, Previous: true}},
		{"deleted outside", kv.Deleted, false, false, Outcome{}},
	} {
		if got := Classify(tc.kind, tc.now, tc.before); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestPlanWatch(t *testing.T) {
	yes, no := true, false
	bookmarks := storage.SelectionPredicate{AllowWatchBookmarks: true}
	for _, tc := range []struct {
		name     string
		version  int64
		opts     storage.ListOptions
		off      bool // WatchList feature
		uncached bool
		want     watchPlan
	}{
		{name: "unset: state, then events", want: watchPlan{list: true}},
		{name: "0: any state, then events", opts: storage.ListOptions{ResourceVersion: "0"}, want: watchPlan{list: true, anyMember: true}},
		{name: "N: events after it", version: 7, opts: storage.ListOptions{ResourceVersion: "7"}, want: watchPlan{after: 7}},
		{name: "N with bookmarks", version: 7, opts: storage.ListOptions{ResourceVersion: "7", Predicate: bookmarks}, want: watchPlan{after: 7, bookmarks: true}},
		{name: "N with bookmarks, uncached", version: 7, opts: storage.ListOptions{ResourceVersion: "7", Predicate: bookmarks}, uncached: true, want: watchPlan{after: 7}},
		{name: "initial events", opts: storage.ListOptions{SendInitialEvents: &yes, Predicate: bookmarks}, want: watchPlan{list: true, endBookmark: true, bookmarks: true}},
		{name: "initial events, uncached", opts: storage.ListOptions{SendInitialEvents: &yes, Predicate: bookmarks}, uncached: true, want: watchPlan{list: true, endBookmark: true}},
		{name: "initial events not older than N", version: 7, opts: storage.ListOptions{ResourceVersion: "7", SendInitialEvents: &yes, Predicate: bookmarks}, want: watchPlan{list: true, anyMember: true, atLeast: 7, endBookmark: true, bookmarks: true}},
		{name: "initial events of any state", opts: storage.ListOptions{ResourceVersion: "0", SendInitialEvents: &yes, Predicate: bookmarks}, want: watchPlan{list: true, anyMember: true, endBookmark: true, bookmarks: true}},
		{name: "initial events without bookmarks", opts: storage.ListOptions{SendInitialEvents: &yes}, want: watchPlan{list: true}},
		{name: "no initial events: from now", opts: storage.ListOptions{SendInitialEvents: &no}, want: watchPlan{}},
		{name: "no initial events, N", version: 7, opts: storage.ListOptions{ResourceVersion: "7", SendInitialEvents: &no}, want: watchPlan{after: 7}},
		{name: "initial events where they do not exist", opts: storage.ListOptions{SendInitialEvents: &yes, Predicate: bookmarks}, off: true, want: watchPlan{list: true, bookmarks: true}},
		{name: "no initial events where they do not exist", opts: storage.ListOptions{SendInitialEvents: &no}, off: true, want: watchPlan{list: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := planWatch(tc.version, tc.opts, !tc.off, tc.uncached)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(watchPlan{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNextBookmark(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name     string
		deadline time.Duration // 0: none
		want     time.Duration // 0: no more
	}{
		{"no deadline", 0, time.Minute},
		{"far deadline", time.Hour, time.Minute},
		{"near deadline", 30 * time.Second, 28 * time.Second},
		{"just after the minute", 61 * time.Second, 59 * time.Second},
		{"too near", 2 * time.Second, 0},
		{"passed", -time.Second, 0},
	} {
		deadline := time.Time{}
		if tc.deadline != 0 {
			deadline = now.Add(tc.deadline)
		}
		next, ok := nextBookmark(now, time.Minute, deadline)
		if ok != (tc.want != 0) || ok && next.Sub(now) != tc.want {
			t.Errorf("%s: in %s, %t, want in %s", tc.name, next.Sub(now), ok, tc.want)
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
		t.Errorf("for a client that wants 50000 etcd is asked for %d at once", large.size)
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
		t.Error("a refused lease is no error")
	}
}

func TestItems(t *testing.T) {
	list := &example.PodList{}
	it, err := newItems(list)
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
	other.Name = "b" // what a codec returned instead of the place it was given
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
	it, _ = newItems(empty)
	if it.finish(); empty.Items == nil {
		t.Error("an empty list is null")
	}
	if _, err := newItems(&example.Pod{}); err == nil || !strings.Contains(err.Error(), "Items") {
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

package bytecache

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"triune.dev/shared/storage/kv"
)

// logged is a space with caches of one object each.
type logged struct {
	*Space
	etcd   *sealedEtcd
	caches map[string]*Cache
	value  []byte
}

func newLogged(t *testing.T, config Config, resources ...string) *logged {
	t.Helper()
	etcd := &sealedEtcd{now: 100, values: map[string]string{}}
	config.Origin, config.Feed, config.PlainBytes = etcd, etcd, -1
	l := &logged{Space: New(config), etcd: etcd, caches: map[string]*Cache{}, value: make([]byte, 12_000)}
	for _, r := range resources {
		etcd.values["/"+r+"/a"] = ""
	}
	l.Reset(100)
	for _, r := range resources {
		c, err := l.Cache("/"+r+"/", Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.caches[r] = c
	}
	return l
}

// change writes so many bytes to the object of a resource.
func (l *logged) change(resource string, size int) {
	l.etcd.now++
	e := kv.Event{Kind: kv.Modified, Key: "/" + resource + "/a", Revision: l.etcd.now, Value: l.value[:size]}
	l.Apply(kv.Batch{Events: []kv.Event{e}, Revision: e.Revision})
}

// At the load that DefaultLogBytes is made for, every resource retains the changes of
// logRetention.
func TestLogsHoldThePlannedLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := []struct {
			resource     string
			each, second int
		}{{"leases", 400, 1000}, {"pods", 3500, 500}, {"nodes", 12_000, 33}, {"others", 1500, 200}}
		var resources []string
		for _, r := range load {
			resources = append(resources, r.resource)
		}
		l := newLogged(t, Config{}, resources...)
		var began []int64 // the revision at which each second began
		for range 5 * int(logRetention/time.Second) / 4 {
			began = append(began, l.etcd.now)
			for _, r := range load {
				for range r.second {
					l.change(r.resource, r.each)
				}
			}
			time.Sleep(time.Second)
		}
		fresh := began[len(began)-int(logRetention/time.Second)]
		for _, r := range load {
			s := l.caches[r.resource].Stats()
			if s.LogFloor > fresh {
				t.Errorf("%s: floor %d, want at most %d: %+v", r.resource, s.LogFloor, fresh, s)
			}
		}
		if used := l.logs.bytes.Load(); used > DefaultLogBytes {
			t.Errorf("the logs hold %d bytes", used)
		}
	})
}

// Beyond the limit of all logs the oldest changes are dropped first, regardless of their
// resource: no log reaches back less because another resource is busier.
func TestOldestChangesAreDroppedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 4 << 20
		l := newLogged(t, Config{LogBytes: limit}, "busy", "quiet", "silent")
		l.change("silent", 100)
		for i := range 5000 {
			l.change("busy", 10_000)
			if i%20 == 0 {
				l.change("quiet", 1000)
			}
			if used := l.logs.bytes.Load(); used > limit {
				t.Fatalf("the logs hold %d bytes after %d changes", used, i)
			}
			time.Sleep(10 * time.Millisecond)
		}
		busy, quiet, silent := l.caches["busy"].Stats(), l.caches["quiet"].Stats(), l.caches["silent"].Stats()
		if busy.LogBytes < limit/2 {
			t.Errorf("the busy resource may hold more: %+v", busy)
		}
		if quiet.LogFloor > busy.LogFloor {
			t.Errorf("the floor of the quiet resource is %d, that of the busy one %d", quiet.LogFloor, busy.LogFloor)
		}
		if silent.LogChanges != 1 {
			t.Errorf("changes younger than %s were dropped: %+v", logRetention, silent)
		}
	})
}

// Changes older than logRetention are dropped even if there is room, except for a share of
// each resource, and even if the resource does not change any more.
func TestLogsDropOutdatedChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(t, Config{LogBytes: 1 << 30}, "busy", "other")
		for range 3000 {
			l.change("busy", 10_000)
		}
		if s := l.caches["busy"].Stats(); s.LogChanges != 3000 {
			t.Fatalf("recent changes were dropped: %+v", s)
		}
		time.Sleep(logRetention + time.Second)
		l.change("other", 1)
		s := l.caches["busy"].Stats()
		if s.LogBytes > retainedLogBytes || s.LogBytes < retainedLogBytes*3/4 {
			t.Errorf("%s later the log holds %+v", logRetention, s)
		}
	})
}

// A released cache returns its part of the budget.
func TestReleaseReturnsLogBudget(t *testing.T) {
	l := newLogged(t, Config{}, "a", "b")
	for i := range 10 {
		l.change(fmt.Sprintf("%c", 'a'+i%2), 1000)
	}
	l.caches["a"].Release()
	if used, b := l.logs.bytes.Load(), l.caches["b"].Stats(); used != b.LogBytes {
		t.Errorf("%d bytes are counted, there are %+v", used, b)
	}
}

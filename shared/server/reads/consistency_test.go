package reads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/readindex"
)

func (r *resource) update(t testing.TB, namespace, name string, i int) *corev1.Pod {
	t.Helper()
	ctx := request.WithNamespace(context.Background(), namespace)
	out, _, err := r.store.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, stamp(i)), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("update %s: %v", name, err)
	}
	return out.(*corev1.Pod)
}

// TestReadYourWrites checks that a GET or LIST without a resourceVersion reflects every
// write acknowledged before it began, and is answered from bytes.
func TestReadYourWrites(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	for i := range 10 {
		pods.create(t, pod("default", fmt.Sprintf("n%d", i), i))
	}
	ask(t, pods.ours, "/api/v1/pods", nil)
	before := pods.fallbacks.Load()
	var group sync.WaitGroup
	for writer := range 4 {
		group.Go(func() {
			name := fmt.Sprintf("n%d", writer)
			for i := range 50 {
				wrote := pods.update(t, "default", name, writer*1000+i).ResourceVersion
				var got corev1.Pod
				if err := json.Unmarshal(ask(t, pods.ours, "/api/v1/namespaces/default/pods/"+name, nil).body, &got); err != nil {
					t.Error(err)
				}
				if got.ResourceVersion != wrote {
					t.Errorf("GET after a write at %s shows %s", wrote, got.ResourceVersion)
				}
				path := []string{"/api/v1/pods", "/api/v1/pods?labelSelector=app%3Dapp-" + fmt.Sprint(writer), "/api/v1/pods?fieldSelector=metadata.name%3D" + name + "&limit=3"}[i%3]
				var list corev1.PodList
				if err := json.Unmarshal(ask(t, pods.ours, path, nil).body, &list); err != nil {
					t.Error(err)
				}
				seen := writer == 0 && i%3 == 1 // the object has no labels
				for _, p := range list.Items {
					if p.Name == name {
						seen = true
						if p.ResourceVersion != wrote {
							t.Errorf("LIST %s after a write at %s shows %s", path, wrote, p.ResourceVersion)
						}
					}
				}
				if !seen {
					t.Errorf("LIST %s does not show %s", path, name)
				}
			}
		})
	}
	group.Wait()
	if n := pods.fallbacks.Load() - before; n != 0 {
		t.Errorf("%d reads were answered by the fallback", n)
	}
}

// TestFutureRevisions checks that upstream waits for, and refuses, revisions that do not
// exist, and that we wait for those that etcd has.
func TestFutureRevisions(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	wrote := pods.create(t, pod("default", "a", 1)).(*corev1.Pod).ResourceVersion
	for _, path := range []string{
		"/api/v1/namespaces/default/pods/a?resourceVersion=" + wrote,
		"/api/v1/pods?resourceVersion=" + wrote,
		"/api/v1/pods?resourceVersionMatch=Exact&resourceVersion=" + wrote,
	} {
		if a, fell := pods.compare(t, path, nil); fell || a.status != http.StatusOK {
			t.Errorf("GET %s: status %d, by the fallback: %t", path, a.status, fell)
		}
	}
	if testing.Short() {
		return
	}
	if a, fell := pods.compare(t, "/api/v1/pods?resourceVersion=1000000", nil); !fell || a.status != http.StatusGatewayTimeout {
		t.Errorf("LIST from the future: status %d, by the fallback: %t", a.status, fell)
	}
}

// failing is a Consistency that fails.
type failing struct{}

func (failing) Confirm(context.Context, string) (readindex.Confirmed, error) {
	return readindex.Confirmed{}, errors.New("unavailable")
}

func (failing) Revision(context.Context) (int64, error) { return 0, errors.New("unavailable") }

// ahead is a Consistency of an etcd far ahead of the event log.
type ahead struct{}

func (ahead) Confirm(context.Context, string) (readindex.Confirmed, error) {
	return readindex.Confirmed{ModRevision: 1 << 40, Revision: 1 << 40}, nil
}

func (ahead) Revision(context.Context) (int64, error) { return 1 << 40, nil }

// behind is a Consistency of an etcd behind the cache, because it was replaced by a
// restored backup.
type behind struct{}

func (behind) Confirm(context.Context, string) (readindex.Confirmed, error) {
	return readindex.Confirmed{ModRevision: 1, Revision: 1}, nil
}

func (behind) Revision(context.Context) (int64, error) { return 1, nil }

// TestFallbackAnswersIfCacheIsBehind checks that the fallback answers if the cache may be
// too old, and the cache if the request allows an old state.
func TestFallbackAnswersIfCacheIsBehind(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	pods.create(t, pod("default", "a", 1))
	pods.settle(t)
	pods.handlers.config.Patience = 10 * time.Millisecond
	for name, c := range map[string]Consistency{"etcd does not answer": failing{}, "the event log is behind": ahead{}, "etcd went back": behind{}} {
		pods.handlers.config.Consistency = c
		for path, fallback := range map[string]bool{
			"/api/v1/namespaces/default/pods/a":                   true,
			"/api/v1/namespaces/default/pods/a?resourceVersion=0": false,
			"/api/v1/pods":                                 true,
			"/api/v1/pods?resourceVersion=0":               false,
			"/api/v1/pods?resourceVersion=2":               false,
			"/api/v1/pods?labelSelector=app":               true,
			"/api/v1/pods?labelSelector=app&limit=1":       true,
			"/api/v1/pods?fieldSelector=metadata.name%3Da": true,
		} {
			for _, level := range []bool{false, true} {
				pods.handlers.caughtUp.Store(level) // when it was last looked
				if _, fell := pods.compare(t, path, nil); fell != fallback {
					t.Errorf("%s: GET %s by the fallback: %t, want %t", name, path, fell, fallback)
				}
			}
		}
	}
}

// TestFallbackDoesNotWaitAgain checks that the fallback learns that a LIST has already
// waited for the cache.
func TestFallbackDoesNotWaitAgain(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	pods.create(t, pod("default", "a", 1))
	pods.settle(t)
	pods.handlers.config.Patience = 10 * time.Millisecond
	for c, want := range map[Consistency]bool{failing{}: true, ahead{}: false} {
		pods.handlers.config.Consistency = c
		asked := false
		list := pods.route(nil, pods.handlers.List(func(_ http.ResponseWriter, req *http.Request) {
			asked = true
			if got := etcdstore.MayWaitForCache(req.Context()); got != want {
				t.Errorf("%T: the fallback may wait: %t, want %t", c, got, want)
			}
		}))
		list.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil))
		if !asked {
			t.Errorf("%T: the fallback was not asked", c)
		}
	}
}

// counting counts its calls, and is ahead of the event log on demand.
type counting struct {
	Consistency
	keys, revisions atomic.Int64
	ahead           atomic.Bool
}

func (c *counting) Confirm(ctx context.Context, key string) (readindex.Confirmed, error) {
	c.keys.Add(1)
	confirmed, err := c.Consistency.Confirm(ctx, key)
	if c.ahead.Load() {
		confirmed.Revision++ // another key has been written
	}
	return confirmed, err
}

func (c *counting) Revision(ctx context.Context) (int64, error) {
	c.revisions.Add(1)
	revision, err := c.Consistency.Revision(ctx)
	if c.ahead.Load() {
		revision++
	}
	return revision, err
}

// TestConfirmsKeyIfCacheIsBehind checks that a GET confirms its key only at first and while
// the cache is behind; otherwise the revision of etcd suffices.
func TestConfirmsKeyIfCacheIsBehind(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	pods.create(t, pod("default", "a", 1))
	pods.settle(t)
	etcd := &counting{Consistency: pods.handlers.config.Consistency}
	pods.handlers.config.Consistency = etcd
	pods.handlers.caughtUp.Store(false)
	for _, step := range []struct {
		name            string
		ahead           bool
		keys, revisions int64
	}{
		{"at first", false, 1, 0},
		{"level", false, 0, 1},
		{"still level", false, 0, 1},
		{"etcd is ahead", true, 1, 1},
		{"it was at the last look", true, 1, 0},
		{"it is no more", false, 1, 0},
		{"level again", false, 0, 1},
	} {
		etcd.ahead.Store(step.ahead)
		etcd.keys.Store(0)
		etcd.revisions.Store(0)
		a := ask(t, pods.ours, "/api/v1/namespaces/default/pods/a", nil)
		if a.status != http.StatusOK || etcd.keys.Load() != step.keys || etcd.revisions.Load() != step.revisions {
			t.Errorf("%s: status %d; asked about keys %d times, want %d; about the revision %d times, want %d",
				step.name, a.status, etcd.keys.Load(), step.keys, etcd.revisions.Load(), step.revisions)
		}
	}
}

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/kv"
)

// podNamed returns a pod, whose key podKey returns.
func podNamed(name string, change ...func(*example.Pod)) *example.Pod {
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func podKey(name string) string { return "/pods/ns/" + name }

func (f *fixture) create(t testing.TB, pod *example.Pod) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := f.Create(t.Context(), "/pods/"+pod.Namespace+"/"+pod.Name, pod, out, 0); err != nil {
		t.Fatalf("create %s: %v", pod.Name, err)
	}
	return out
}

func (f *fixture) update(t testing.TB, name string, change func(*example.Pod)) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	err := f.GuaranteedUpdate(t.Context(), podKey(name), out, false, nil, func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		change(obj.(*example.Pod))
		return obj, nil, nil
	}, nil)
	if err != nil {
		t.Fatalf("update %s: %v", name, err)
	}
	return out
}

func (f *fixture) remove(t testing.TB, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := f.Delete(t.Context(), podKey(name), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatalf("delete %s: %v", name, err)
	}
	return out
}

func label(key, value string) func(*example.Pod) {
	return func(p *example.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = value
	}
}

// selecting returns a predicate for a label selector.
func selecting(t testing.TB, selector string) storage.SelectionPredicate {
	t.Helper()
	l, err := labels.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	return storage.SelectionPredicate{Label: l, Field: fields.Everything(), GetAttrs: storage.DefaultNamespaceScopedAttr}
}

func revisionOf(t testing.TB, version string) int64 {
	t.Helper()
	rev, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		t.Fatalf("resourceVersion %q: %v", version, err)
	}
	return rev
}

// TestFutureRevision checks reads of a future resourceVersion. As in kube-apiserver, a cache
// waits for it for up to three seconds and then refuses with a retry hint; a resource without
// a cache refuses immediately.
func TestFutureRevision(t *testing.T) {
	f := newFixture(t)
	f.freshTimeout = 100 * time.Millisecond
	f.create(t, podNamed("a"))
	now, err := f.currentRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	future := strconv.FormatInt(now+1000, 10)
	everything := storage.Everything
	limited := storage.Everything
	limited.Limit = 1
	for _, tc := range []struct {
		name     string
		read     func() error
		uncached bool
		retry    int32
	}{
		{name: "get", retry: 1, read: func() error {
			return f.Get(t.Context(), podKey("a"), storage.GetOptions{ResourceVersion: future}, &example.Pod{})
		}},
		{name: "get, uncached", uncached: true, read: func() error {
			return f.Get(t.Context(), podKey("a"), storage.GetOptions{ResourceVersion: future}, &example.Pod{})
		}},
		{name: "list not older than", retry: 1, read: func() error {
			return f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: future, Predicate: everything}, &example.PodList{})
		}},
		{name: "list exactly", retry: 1, read: func() error {
			return f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: future, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Predicate: everything}, &example.PodList{})
		}},
		{name: "list with limit", retry: 1, read: func() error {
			return f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: future, Predicate: limited}, &example.PodList{})
		}},
		{name: "list, uncached", uncached: true, read: func() error {
			return f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: future, Predicate: everything}, &example.PodList{})
		}},
		{name: "list exactly, uncached", uncached: true, read: func() error {
			return f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: future, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Predicate: everything}, &example.PodList{})
		}},
		{name: "list by name exactly", read: func() error {
			return f.GetList(t.Context(), podKey("a"), storage.ListOptions{ResourceVersion: future, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Predicate: everything}, &example.PodList{})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f.uncached = tc.uncached
			defer func() { f.uncached = false }()
			err := tc.read()
			if !storage.IsTooLargeResourceVersion(err) {
				t.Fatalf("error %v, want one with the cause ResourceVersionTooLarge", err)
			}
			status := err.(apierrors.APIStatus).Status()
			want := fmt.Sprintf("Timeout: Too large resource version: %s, current: %d", future, now)
			if status.Code != 504 || status.Reason != metav1.StatusReasonTimeout || status.Message != want || status.Details.RetryAfterSeconds != tc.retry {
				t.Errorf("%d %s, retry after %d s: %q\nwant 504 Timeout, after %d s: %q", status.Code, status.Reason,
					status.Details.RetryAfterSeconds, status.Message, tc.retry, want)
			}
		})
	}
	t.Run("the version comes in time", func(t *testing.T) {
		f.freshTimeout = 10 * time.Second
		done := make(chan error, 1)
		next := strconv.FormatInt(now+1, 10)
		go func() {
			done <- f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: next, Predicate: everything}, &example.PodList{})
		}()
		f.create(t, podNamed("b"))
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestListIsConsistent checks that a list is the state at one revision, however many pages
// it has.
func TestListIsConsistent(t *testing.T) {
	f := newFixture(t)
	const pods = firstPage + 50 // two pages
	for i := range pods {
		f.create(t, podNamed(fmt.Sprintf("p%04d", i)))
	}
	// Between two pages, each reader changes objects of both.
	reads := 0
	f.reader = hookedReader{f.reader, func() {
		if reads++; reads == 2 {
			f.update(t, "p0000", label("changed", "yes"))
			f.update(t, fmt.Sprintf("p%04d", pods-1), label("changed", "yes"))
			f.create(t, podNamed("p9999"))
		}
	}}
	list := &example.PodList{}
	if err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != pods {
		t.Fatalf("%d pods, want %d", len(list.Items), pods)
	}
	at := revisionOf(t, list.ResourceVersion)
	for _, p := range list.Items {
		if p.Labels["changed"] != "" || revisionOf(t, p.ResourceVersion) > at {
			t.Fatalf("pod %s of revision %s in a list of revision %d", p.Name, p.ResourceVersion, at)
		}
	}
	if list.Continue != "" || list.RemainingItemCount != nil {
		t.Errorf("a complete list has continue %q and %v remaining", list.Continue, list.RemainingItemCount)
	}
}

// TestCorruptObjects checks that, with the feature enabled, corrupt objects are reported and
// can be deleted without being read.
func TestCorruptObjects(t *testing.T) {
	f := newFixture(t)
	f.reportCorrupt = true
	f.create(t, podNamed("good"))
	for key, value := range map[string]string{"encrypted": "not encrypted", "encoded": sealPrefix + "not encoded"} {
		if _, err := f.etcd.Put(t.Context(), "/registry"+podKey(key), value); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"encrypted", "encoded"} {
		if err := f.Get(t.Context(), podKey(name), storage.GetOptions{}, &example.Pod{}); !storage.IsCorruptObject(err) {
			t.Errorf("get of %s: %v, want a corrupt object", name, err)
		}
	}
	err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonStoreReadError || status.Status().Code != 500 {
		t.Fatalf("list: %v, want StoreReadError", err)
	}
	var named []string
	for _, cause := range status.Status().Details.Causes {
		named = append(named, cause.Field)
	}
	if len(named) != 2 || named[0] != "/registry"+podKey("encoded") || named[1] != "/registry"+podKey("encrypted") {
		t.Errorf("the list names %v", named)
	}
	for _, name := range []string{"encrypted", "encoded"} {
		if err := f.Delete(t.Context(), podKey(name), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err == nil {
			t.Errorf("deletion of %s, which cannot be read, succeeds without being asked to ignore that", name)
		}
		if err := f.Delete(t.Context(), podKey(name), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{IgnoreStoreReadError: true}); err != nil {
			t.Errorf("deletion of %s: %v", name, err)
		}
	}
	if err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{}); err != nil {
		t.Errorf("list after the deletion: %v", err)
	}
	// Without the feature, the first corrupt object fails the list.
	f.reportCorrupt = false
	if _, err := f.etcd.Put(t.Context(), "/registry"+podKey("encrypted"), "not encrypted"); err != nil {
		t.Fatal(err)
	}
	err = f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
	if !storage.IsInternalError(err) {
		t.Errorf("list without the feature: %v, want an internal error", err)
	}
}

// laggingReader is a member of etcd that lags behind: its serializable reads return an old
// revision.
type laggingReader struct {
	Reader
	behind int64
}

func (r laggingReader) Get(ctx context.Context, key string, o kv.ReadOptions) (kv.Item, error) {
	if o.Serializable {
		return kv.Item{Revision: r.behind}, nil
	}
	return r.Reader.Get(ctx, key, o)
}

func (r laggingReader) List(ctx context.Context, rng kv.Range) (kv.Page, error) {
	if rng.Serializable {
		return kv.Page{Revision: r.behind}, nil
	}
	return r.Reader.List(ctx, rng)
}

// TestLaggingMember checks that a lagging member answers only reads at any revision.
func TestLaggingMember(t *testing.T) {
	f := newFixture(t)
	created := f.create(t, podNamed("a"))
	f.reader = laggingReader{f.reader, 1}
	for version, want := range map[string]int{"": 1, "0": 0, created.ResourceVersion: 1} {
		list := &example.PodList{}
		if err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: version, Predicate: storage.Everything}, list); err != nil || len(list.Items) != want {
			t.Errorf("list at %q: %d pods, %v, want %d", version, len(list.Items), err, want)
		}
		err := f.Get(t.Context(), podKey("a"), storage.GetOptions{ResourceVersion: version}, &example.Pod{})
		if storage.IsNotFound(err) != (want == 0) {
			t.Errorf("get at %q: %v, want it found: %t", version, err, want == 1)
		}
	}
}

// TestCacheOfAReplacedEtcd checks that consistent reads do not return objects that the cache
// still has, for a moment, after etcd was replaced by a restored backup.
func TestCacheOfAReplacedEtcd(t *testing.T) {
	f := newFixture(t, withLaggingCache(t))
	created := f.create(t, podNamed("a"))
	if err := f.Get(t.Context(), podKey("a"), storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}); err != nil {
		t.Fatal(err) // loads the cache
	}
	f.cache.Space().Apply(kv.Batch{Revision: 1 << 40, Events: []kv.Event{{Kind: kv.Deleted, Key: f.cache.Prefix() + "ns/a", Revision: 1 << 40}}})
	if err := f.cache.Await(t.Context(), 1<<40); err != nil { // while it is decrypted
		t.Fatal(err)
	}
	if err := f.Get(t.Context(), podKey("a"), storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}); !storage.IsNotFound(err) {
		t.Fatalf("the cache still has it: %v", err)
	}
	got := &example.Pod{}
	if err := f.Get(t.Context(), podKey("a"), storage.GetOptions{}, got); err != nil || got.ResourceVersion != created.ResourceVersion {
		t.Errorf("get: %v at %s, want it at %s", err, got.ResourceVersion, created.ResourceVersion)
	}
	list := &example.PodList{}
	if err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil || len(list.Items) != 1 {
		t.Errorf("list: %d pods, %v, want 1", len(list.Items), err)
	}
}

// TestWithoutCacheWait checks that a LIST that has waited for the cache does not wait again.
func TestWithoutCacheWait(t *testing.T) {
	f := newFixture(t, withLaggingCache(t))
	f.freshTimeout = time.Hour
	f.create(t, podNamed("a"))
	list := &example.PodList{}
	if err := f.GetList(WithoutCacheWait(t.Context()), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil || len(list.Items) != 1 {
		t.Errorf("%d pods, %v, want 1", len(list.Items), err)
	}
}

package etcdstore

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestPages walks a list page by page while the state changes.
func TestPages(t *testing.T) {
	f := newFixture(t)
	for i := range 10 {
		f.create(t, podNamed(fmt.Sprintf("p%d", i)))
	}
	for _, tc := range []struct {
		name      string
		predicate storage.SelectionPredicate
		limit     int64
		pages     []int
		remaining []int64 // -1: not told
	}{
		{"everything", storage.Everything, 4, []int{4, 4, 2}, []int64{6, 2, -1}},
		{"one page exactly", storage.Everything, 10, []int{10}, []int64{-1}},
		{"more than there is", storage.Everything, 50, []int{10}, []int64{-1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token, version, seen := "", "", 0
			for i, want := range tc.pages {
				list := &example.PodList{}
				p := tc.predicate
				p.Limit, p.Continue = tc.limit, token
				if err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: p}, list); err != nil {
					t.Fatal(err)
				}
				remaining := int64(-1)
				if list.RemainingItemCount != nil {
					remaining = *list.RemainingItemCount
				}
				if len(list.Items) != want || remaining != tc.remaining[i] || (list.Continue == "") != (i == len(tc.pages)-1) {
					t.Fatalf("page %d: %d pods, %d remaining, continue %q; want %d, %d", i, len(list.Items), remaining, list.Continue, want, tc.remaining[i])
				}
				if version == "" {
					version = list.ResourceVersion
				}
				if list.ResourceVersion != version {
					t.Errorf("page %d is of revision %s, the first of %s", i, list.ResourceVersion, version)
				}
				for _, pod := range list.Items {
					if pod.Name != fmt.Sprintf("p%d", seen) {
						t.Errorf("page %d: %s, want p%d", i, pod.Name, seen)
					}
					seen++
				}
				token = list.Continue
				f.update(t, "p9", label("round", strconv.Itoa(i)))
			}
		})
	}
}

// TestContinueToken checks that continue tokens equal those of kube-apiserver, with and
// without its watch cache.
func TestContinueToken(t *testing.T) {
	f := newFixture(t)
	f.create(t, podNamed("a"))
	last := f.create(t, podNamed("b"))
	for _, tc := range []struct {
		key      string
		uncached bool
		want     string
	}{
		{"/pods", false, `{"v":"meta.k8s.io/v1","rv":%s,"start":"/ns/a\u0000"}`},
		{"/pods/", false, `{"v":"meta.k8s.io/v1","rv":%s,"start":"ns/a\u0000"}`},
		{"/pods/ns", false, `{"v":"meta.k8s.io/v1","rv":%s,"start":"/a\u0000"}`},
		{"/pods", true, `{"v":"meta.k8s.io/v1","rv":%s,"start":"ns/a\u0000"}`},
	} {
		f.uncached = tc.uncached
		list := &example.PodList{}
		p := storage.Everything
		p.Limit = 1
		if err := f.GetList(t.Context(), tc.key, storage.ListOptions{Recursive: true, Predicate: p}, list); err != nil {
			t.Fatal(err)
		}
		got, err := base64.RawURLEncoding.DecodeString(list.Continue)
		if want := fmt.Sprintf(tc.want, last.ResourceVersion); err != nil || string(got) != want {
			t.Errorf("%s, uncached %t: %s, %v, want %s", tc.key, tc.uncached, got, err, want)
		}
		for _, uncached := range []bool{false, true} {
			f.uncached = uncached
			rest := &example.PodList{}
			p.Continue = list.Continue
			if err := f.GetList(t.Context(), tc.key, storage.ListOptions{Recursive: true, Predicate: p}, rest); err != nil || len(rest.Items) != 1 || rest.Items[0].Name != "b" {
				t.Errorf("%s: continued with %d pods, %v", tc.key, len(rest.Items), err)
			}
		}
	}
}

// TestContinueAfterCompaction checks that an expired token is answered with 410 and a token
// with which the client may continue at another revision, also by a Store whose cache has
// pinned the expired one.
func TestContinueAfterCompaction(t *testing.T) {
	t.Run("without a cache", func(t *testing.T) { checkExpiry(t, newFixture(t)) })
	t.Run("pinned", func(t *testing.T) { checkExpiry(t, newFixture(t, withCache(t))) })
}

func checkExpiry(t *testing.T, f *fixture) {
	compactor := NewCompactor(nil, 0)
	f.compaction = compactor
	for i := range 4 {
		f.create(t, podNamed(fmt.Sprintf("p%d", i)))
	}
	page := func(token string) (*example.PodList, error) {
		list := &example.PodList{}
		p := storage.Everything
		p.Limit, p.Continue = 2, token
		return list, f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: p}, list)
	}
	first, err := page("")
	if err != nil {
		t.Fatal(err)
	}
	updated := f.update(t, "p3", label("new", "yes"))
	if second, err := page(first.Continue); err != nil || second.Items[1].Labels["new"] == "yes" {
		t.Fatalf("before the compaction: %v, %v", second.Items, err)
	}
	f.compact(t.Context(), t, updated.ResourceVersion)
	compactor.learn(revisionOf(t, updated.ResourceVersion))
	_, err = page(first.Continue)
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("error %v, want 410 Expired", err)
	}
	status := err.(apierrors.APIStatus).Status()
	if status.Code != 410 || status.ListMeta.Continue == "" {
		t.Fatalf("status %+v, want a token to go on with", status)
	}
	rest, err := page(status.ListMeta.Continue)
	if err != nil || len(rest.Items) != 2 || rest.Items[0].Name != "p2" || rest.Items[1].Labels["new"] != "yes" {
		t.Fatalf("rest %v, %v", rest.Items, err)
	}
	// A list without a limit has no token.
	err = f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, ResourceVersion: first.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact, Predicate: storage.Everything}, &example.PodList{})
	if !apierrors.IsResourceExpired(err) || err.(apierrors.APIStatus).Status().ListMeta.Continue != "" {
		t.Errorf("exact list of a compacted revision: %v", err)
	}
}

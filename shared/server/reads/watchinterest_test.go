package reads

import (
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/bytecache"
)

// TestWatchWakesForMatchingChanges checks which changes wake a watch.
func TestWatchWakesForMatchingChanges(t *testing.T) {
	pods := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	const all, own = "/api/v1/pods?watch=1", "/api/v1/namespaces/ns-0/pods?watch=1"
	everything, namespace := bytecache.Interest{Key: pods.cache.Prefix()}, bytecache.Interest{Key: pods.cache.Prefix() + "ns-0/"}
	one, node := bytecache.Interest{Key: pods.cache.Prefix() + "ns-0/a"}, bytecache.Interest{Field: "spec.nodeName", Value: "node-1"}
	for _, tc := range []struct {
		path string
		want bytecache.Interest
	}{
		{all, everything},
		{all + "&labelSelector=app%3Dred", everything},
		{all + "&fieldSelector=metadata.name%3Da", everything},
		{all + "&fieldSelector=metadata.namespace%3Dns-0", namespace},
		{all + "&fieldSelector=metadata.namespace%3Dns-0,metadata.name%3Da", one},
		{all + "&fieldSelector=spec.nodeName%3Dnode-1", node},
		{all + "&fieldSelector=metadata.name!%3Da,spec.nodeName%3D%3Dnode-1&labelSelector=app", node},
		{all + "&fieldSelector=spec.nodeName!%3Dnode-1", everything},
		{all + "&fieldSelector=spec.nodeName%3D", bytecache.Interest{Field: "spec.nodeName"}},
		{own, namespace},
		{own + "&fieldSelector=metadata.name%3Da", one},
		{own + "&fieldSelector=metadata.name%3Da,spec.nodeName%3Dnode-1", one},
		{own + "&fieldSelector=spec.nodeName%3Dnode-1", node},
	} {
		s, _ := pods.direct(t, tc.path+"&resourceVersion=1", "application/json")
		if got := s.request.Interest; got != tc.want {
			t.Errorf("%s is woken for %+v, want %+v", tc.path, got, tc.want)
		}
	}
	// Versions of custom resources have fields of their own, which the cache has not.
	pods.handlers.config.OwnFields = true
	s, _ := pods.direct(t, own+"&fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=1", "application/json")
	if got := s.request.Interest; got != namespace {
		t.Errorf("with fields of its own it is woken for %+v", got)
	}
}

// slow is a client that reads nothing until its pending changes are released.
type slow struct {
	flushes
	held *atomic.Pointer[[]*bytecache.Change]
}

func (s *slow) Write(p []byte) (int, error) {
	for s.held.Load() != nil {
		runtime.Gosched()
	}
	return s.flushes.Write(p)
}

// TestSlowWatchResumesAtReleasedChanges checks that a watch reads released changes again
// from the first of them on, not from where it began to sleep, which the log may have
// dropped.
func TestSlowWatchResumesAtReleasedChanges(t *testing.T) {
	pods := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	pods.create(t, pod("ns-0", "a", 1))
	pods.create(t, pod("ns-0", "b", 1))
	from := pods.revision(t)
	write := func(name string, times int) {
		for n := range times {
			pods.change(t, "ns-0", name, func(obj kruntime.Object) {
				obj.(*corev1.Pod).Annotations = map[string]string{"n": strconv.Itoa(n), "large": strings.Repeat("x", frameChunk)}
			})
		}
	}
	write("b", 5)
	write("a", 3)
	last := pods.revision(t)
	s, _ := pods.direct(t, fmt.Sprintf("/api/v1/namespaces/ns-0/pods?watch=1&resourceVersion=%d&fieldSelector=metadata.name%%3Da", from), "application/json")
	out := &slow{held: &s.pending}
	out.header = http.Header{}
	s.w, s.reached = out, from
	changes, err := s.watch.Next(t.Context())
	if err != nil || len(changes.List) != 8 {
		t.Fatal(len(changes.List), err)
	}
	changes.List = changes.List[5:] // the changes after a sleep
	whole, err := s.deliver(changes)
	if whole || err != nil || s.reached < last-3 {
		t.Fatalf("all sent: %t, %v; up to %d, want at least %d", whole, err, s.reached, last-3)
	}
	for !whole {
		if changes, err = s.watch.Next(t.Context()); err != nil || changes.List[0].Revision < last-2 {
			t.Fatalf("from %d on, %v", changes.List[0].Revision, err)
		}
		if whole, err = s.deliver(changes); err != nil {
			t.Fatal(err)
		}
	}
	if want := int64(3 * frameChunk); s.reached != last || out.bytes < want || out.bytes > 2*want {
		t.Errorf("up to %d with %d bytes", s.reached, out.bytes)
	}
}

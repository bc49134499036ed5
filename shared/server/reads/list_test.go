package reads

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/storage/bytecache"
)

// TestSelectorsUseIndexes checks that a selector with a positive term reads only the
// objects in an index from its second request on, and none if no object matches; and that
// the result is the same as that of the first request.
func TestSelectorsUseIndexes(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	const n = 400
	for i := range n {
		p := pod("default", fmt.Sprintf("n%03d", i), i+1)
		p.Labels = map[string]string{"own": fmt.Sprint(i), "half": fmt.Sprint(i % 2), "every": "one"}
		p.Spec.NodeName = fmt.Sprintf("node-%d", i/10)
		pods.create(t, p)
	}
	pods.settle(t)
	for selector, want := range map[string]struct {
		indexed  bool
		selected int
	}{
		"labelSelector=own%3D7":                                           {true, 1},
		"labelSelector=own%3Dnone":                                        {true, 0},
		"labelSelector=absent":                                            {true, 0},
		"labelSelector=every%3Done,own+in+(1,2,3)":                        {true, 3},
		"labelSelector=own%3D7,half%3D0":                                  {true, 0},
		"labelSelector=own%3D7,!absent":                                   {true, 1},
		"fieldSelector=spec.nodeName%3Dnode-3":                            {true, 10},
		"fieldSelector=spec.nodeName%3Dnode-3&limit=4":                    {true, 4},
		"fieldSelector=spec.nodeName%3D":                                  {false, 0},
		"labelSelector=half%3D1":                                          {false, n / 2},
		"labelSelector=half!%3D1":                                         {false, n / 2},
		"labelSelector=!own":                                              {false, 0},
		"fieldSelector=metadata.name!%3Dn000":                             {false, n - 1},
		"labelSelector=own+in+(1,2)&fieldSelector=spec.nodeName%3Dnode-0": {true, 2},
	} {
		plan, ok := pods.handlers.planList(pods.newRequest(t, "/api/v1/pods?"+selector, nil))
		if !ok {
			t.Fatalf("%s is not understood", selector)
		}
		for _, time := range []string{"first", "second"} {
			found, ok := pods.handlers.match(t.Context(), &plan)
			if !ok {
				t.Fatalf("%s: not answered", selector)
			}
			if found.count != want.selected || found.more != strings.Contains(selector, "limit") {
				t.Errorf("%s, %s time: %d objects, more: %t, want %d", selector, time, found.count, found.more, want.selected)
			}
		}
		if _, ok := pods.handlers.byIndex(t.Context(), &plan, 0); ok != want.indexed {
			t.Errorf("%s: by an index: %t, want %t", selector, ok, want.indexed)
		}
	}
}

// TestPagesOfOneState checks that all pages of a LIST show the state of the first one and
// are served from bytes.
func TestPagesOfOneState(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	const n = 50
	for i := range n {
		pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i))
	}
	before := pods.fallbacks.Load()
	token, seen := "", 0
	for page := 0; ; page++ {
		var list corev1.PodList
		if err := json.Unmarshal(ask(t, pods.ours, "/api/v1/pods?limit=7&continue="+token, nil).body, &list); err != nil {
			t.Fatal(err)
		}
		seen += len(list.Items)
		for _, p := range list.Items {
			if p.Annotations["touched"] != "" {
				t.Errorf("page %d shows a change made after the first", page)
			}
		}
		if list.RemainingItemCount != nil && int(*list.RemainingItemCount) != n-seen {
			t.Errorf("page %d: %d remain, want %d", page, *list.RemainingItemCount, n-seen)
		}
		if token = list.Continue; token == "" {
			break
		}
		pods.update(t, "default", fmt.Sprintf("n%03d", n-1-page), page)
		pods.settle(t)
	}
	if seen != n {
		t.Errorf("%d objects in all pages, want %d", seen, n)
	}
	if fell := pods.fallbacks.Load() - before; fell != 0 {
		t.Errorf("%d pages were answered by the fallback", fell)
	}
}

// gone is a client that disconnects after reading a little.
type gone struct {
	discard
	cancel context.CancelFunc
}

func (g *gone) Write(p []byte) (int, error) {
	g.cancel()
	return g.discard.Write(p)
}

// TestDisconnectAbortsResponse checks that nothing more is written after a client has
// disconnected, and that the response does not look complete.
func TestDisconnectAbortsResponse(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	for i := range 300 {
		p := pod("default", fmt.Sprintf("n%03d", i), i)
		p.Annotations["large"] = strings.Repeat("x", 2000)
		pods.create(t, p)
	}
	pods.settle(t)
	for _, encoding := range []string{"", "gzip"} {
		for _, media := range []string{"application/json", "application/json;as=Table;g=meta.k8s.io;v=v1"} {
			ctx, cancel := context.WithCancel(t.Context())
			req := pods.newRequest(t, "/api/v1/pods?includeObject=Object", http.Header{"Accept": {media}, "Accept-Encoding": {encoding}}).WithContext(ctx)
			info, _ := request.RequestInfoFrom(pods.newRequest(t, "/api/v1/pods", nil).Context())
			req = req.WithContext(request.WithRequestInfo(ctx, info))
			g := &gone{discard: discard{header: http.Header{}}, cancel: cancel}
			var aborted any
			func() {
				defer func() { aborted = recover() }()
				pods.handlers.List(nil)(g, req)
			}()
			// Blocks are so small that one chunk has all of them.
			if encoding == "" && (aborted != http.ErrAbortHandler || g.writes != 1) {
				t.Errorf("%s: %d writes, ended with %v", media, g.writes, aborted)
			}
		}
	}
}

// TestAllocations checks that cached objects are sent without an allocation for each.
func TestAllocations(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	const n = 400
	for i := range n {
		pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i))
	}
	pods.settle(t)
	allocated := func(path, media, encoding string) uint64 {
		req := pods.newRequest(t, path, http.Header{"Accept": {media}, "Accept-Encoding": {encoding}})
		w := &discard{header: http.Header{}}
		serve := pods.handlers.List(nil)
		serve(w, req)
		const runs = 20
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		for range runs {
			serve(w, req)
		}
		goruntime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / runs
	}
	measure := func(path, media, encoding string) float64 {
		req := pods.newRequest(t, path, http.Header{"Accept": {media}, "Accept-Encoding": {encoding}})
		w := &discard{header: http.Header{}}
		serve := pods.handlers.List(nil)
		if strings.Contains(path, "pods/") {
			serve = pods.handlers.Get(nil)
		}
		serve(w, req)
		return testing.AllocsPerRun(20, func() { serve(w, req) })
	}
	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		if allocs := measure("/api/v1/namespaces/default/pods/n007?resourceVersion=0", media, ""); allocs > 3 {
			t.Errorf("a GET as %s allocates %.0f times", media, allocs)
		}
	}
	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
		for _, encoding := range []string{"", "gzip"} {
			few, many := measure("/api/v1/pods?resourceVersion=2&limit=0&fieldSelector=metadata.name%3Dn001", media, encoding), measure("/api/v1/pods?resourceVersion=2", media, encoding)
			if many > few+40 {
				t.Errorf("a LIST of %d as %s %s allocates %.0f times, of one %.0f", n, media, encoding, many, few)
			}
			if bytes := allocated("/api/v1/pods?resourceVersion=2", media, encoding); bytes > 128<<10 {
				t.Errorf("a LIST of %d as %s %s allocates %d bytes", n, media, encoding, bytes)
			}
		}
	}
}

// TestConcurrent runs readers of all kinds while objects change, with a budget that is
// always too small.
func TestConcurrent(t *testing.T) {
	w := newWorld(t, func(c *bytecache.Config) { c.FormBytes = 64 << 10 })
	pods := w.pods(t)
	const n = minBlockObjects + 50
	for i := range n {
		pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i))
	}
	var group sync.WaitGroup
	var stop atomic.Bool
	group.Go(func() {
		defer stop.Store(true)
		for i := range 300 {
			pods.update(t, "default", fmt.Sprintf("n%03d", i%n), i)
		}
	})
	for reader := range 6 {
		group.Go(func() {
			for i := 0; !stop.Load() || i < 20; i++ {
				header := http.Header{"Accept": {accepts[(reader+i)%len(accepts)]}}
				if i%2 == 0 {
					header.Set("Accept-Encoding", "gzip")
				}
				path := []string{"/api/v1/pods", "/api/v1/pods?limit=30", "/api/v1/pods?labelSelector=app%3Dapp-1", "/api/v1/namespaces/default/pods/n050", "/api/v1/pods?resourceVersion=0"}[i%5]
				if a := ask(t, pods.ours, path, header); a.status != http.StatusOK && a.status != http.StatusNotAcceptable {
					t.Errorf("GET %s %v: status %d", path, header, a.status)
				}
			}
		})
	}
	group.Wait()
	for _, media := range accepts {
		pods.settle(t)
		pods.compare(t, "/api/v1/pods", accept(media))
	}
}

package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/documents"
)

// fakeNext is a next tier that serves only discovery.
type fakeNext struct {
	mu          sync.Mutex
	code        int // 0 for 200
	hangs       bool
	groups      map[string][]string // versions by group
	etag        string
	requests    int
	notModified int // answers of 304
}

func (d *fakeNext) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *fakeNext) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	d.mu.Lock()
	hangs := d.hangs
	d.requests++
	d.mu.Unlock()
	if hangs {
		<-req.Context().Done()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case req.URL.Path != "/apis":
		http.NotFound(w, req)
		return
	case d.code != 0:
		http.Error(w, "no", d.code)
		return
	case d.etag != "" && req.Header.Get("If-None-Match") == d.etag:
		d.notModified++
		w.WriteHeader(http.StatusNotModified)
		return
	}
	list := apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}}
	for name, versions := range d.groups {
		group := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, version := range versions {
			group.Versions = append(group.Versions, apidiscoveryv2.APIVersionDiscovery{
				Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
				Resources: []apidiscoveryv2.APIResourceDiscovery{{Resource: "things", Scope: apidiscoveryv2.ScopeCluster}},
			})
		}
		list.Items = append(list.Items, group)
	}
	slices.SortFunc(list.Items, func(a, b apidiscoveryv2.APIGroupDiscovery) int { return strings.Compare(a.Name, b.Name) })
	w.Header().Set("Content-Type", acceptAggregated)
	if d.etag != "" {
		w.Header().Set("ETag", d.etag)
	}
	_ = json.NewEncoder(w).Encode(list)
}

// newFront returns a tier in front of behind, and a function that expires its cached
// discovery of the next tier.
func newFront(t *testing.T, behind http.Handler) (h http.Handler, expire func()) {
	t.Helper()
	return newFrontOf(t, &Next{Tier: "behind", Handler: behind})
}

func newFrontOf(t *testing.T, next *Next) (h http.Handler, expire func()) {
	t.Helper()
	s := newServer(t, func(c *Config) { c.Next = next })
	if err := s.Install(groupInfo(newPods())); err != nil {
		t.Fatal(err)
	}
	h = prepare(s)
	return h, func() {
		s.discovery.next.mu.Lock()
		defer s.discovery.next.mu.Unlock()
		s.discovery.next.freshUntil = time.Time{}
	}
}

// discovered is the discovery that a client reads at /apis.
type discovered struct {
	etag string
	// versions maps group-versions to their freshness.
	versions map[string]apidiscoveryv2.DiscoveryFreshness
	groups   []string // in the older form
}

func discover(t *testing.T, h http.Handler) discovered {
	t.Helper()
	w := do(h, "GET", "/apis", "Accept: "+acceptAggregated)
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	d := discovered{etag: w.Header().Get("ETag"), versions: map[string]apidiscoveryv2.DiscoveryFreshness{}}
	for _, group := range list.Items {
		for _, version := range group.Versions {
			d.versions[group.Name+"/"+version.Version] = version.Freshness
		}
	}
	w = do(h, "GET", "/apis", "Accept: application/json")
	var older metav1.APIGroupList
	if err := json.Unmarshal(w.Body.Bytes(), &older); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	for _, group := range older.Groups {
		d.groups = append(d.groups, group.Name)
	}
	slices.Sort(d.groups)
	return d
}

const (
	current = apidiscoveryv2.DiscoveryFreshnessCurrent
	stale   = apidiscoveryv2.DiscoveryFreshnessStale
)

type freshness = map[string]apidiscoveryv2.DiscoveryFreshness

func (d discovered) check(t *testing.T, when string, versions freshness, groups ...string) {
	t.Helper()
	if diff := cmp.Diff(versions, d.versions); diff != "" {
		t.Errorf("%s: group-versions (-want +got):\n%s", when, diff)
	}
	if diff := cmp.Diff(groups, d.groups); diff != "" {
		t.Errorf("%s: groups (-want +got):\n%s", when, diff)
	}
}

func TestDiscoveryMergesTheNextTier(t *testing.T) {
	behind := &fakeNext{groups: map[string][]string{"b.example.com": {"v1", "v1beta1"}, "a.example.com": {"v1"}}, etag: `"1"`}
	h, expire := newFront(t, behind)
	first := discover(t, h)
	first.check(t, "at first", freshness{group + "/v1": current, "a.example.com/v1": current, "b.example.com/v1": current, "b.example.com/v1beta1": current},
		"a.example.com", "b.example.com", group)

	expire()
	again := discover(t, h)
	if again.etag == "" || again.etag != first.etag {
		t.Errorf("ETag %q became %q although nothing has changed", first.etag, again.etag)
	}
	if behind.notModified == 0 {
		t.Error("an unchanged document was fetched again")
	}
	behind.set(func() { behind.etag = `"another replica's"` })
	expire()
	if again = discover(t, h); again.etag != first.etag {
		t.Error("the ETag changes with that of the next tier although the groups are the same")
	}

	behind.set(func() { behind.groups, behind.etag = map[string][]string{"b.example.com": {"v1"}}, `"2"` })
	expire()
	less := discover(t, h)
	less.check(t, "after a group and a version are gone", freshness{group + "/v1": current, "b.example.com/v1": current}, "b.example.com", group)
	if less.etag == first.etag {
		t.Error("the ETag has not changed")
	}
}

func TestDiscoveryWhileTheNextTierIsDown(t *testing.T) {
	behind := &fakeNext{groups: map[string][]string{"a.example.com": {"v1"}}, etag: `"1"`}
	h, expire := newFront(t, behind)
	before := discover(t, h)
	staleThen := freshness{group + "/v1": current, "a.example.com/v1": stale}

	failures := map[string]func(){
		"hangs":  func() { behind.hangs = true },
		"is 503": func() { behind.code = http.StatusServiceUnavailable },
		"is 403": func() { behind.code = http.StatusForbidden },
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			behind.set(fail)
			expire()
			begin := time.Now()
			down := discover(t, h)
			if took := time.Since(begin); took > 2*time.Second { // the limit is one second; allow for a slow machine
				t.Errorf("took %v", took)
			}
			down.check(t, "down", staleThen, "a.example.com", group)
			requests := behind.requests
			if again := discover(t, h); again.etag != down.etag {
				t.Errorf("ETag %q became %q", down.etag, again.etag)
			}
			if behind.hangs && behind.requests != requests {
				t.Error("a tier that hangs is asked again immediately")
			}
			expire()
			if again := discover(t, h); again.etag != down.etag {
				t.Errorf("ETag %q became %q although it is still down", down.etag, again.etag)
			}
			behind.set(func() { behind.hangs, behind.code = false, 0 })
			expire()
			up := discover(t, h)
			up.check(t, "up again", before.versions, before.groups...)
			if up.etag != before.etag {
				t.Errorf("ETag %q, and %q before the failure", up.etag, before.etag)
			}
		})
	}
}

// TestDiscoveryWithoutTheNextTierFromTheStart: discovery lists the tier's own groups, and
// those that are always served behind it as Stale.
func TestDiscoveryWithoutTheNextTierFromTheStart(t *testing.T) {
	for name, code := range map[string]int{"503": http.StatusServiceUnavailable, "404": http.StatusNotFound} {
		t.Run(name, func(t *testing.T) {
			behind := &fakeNext{code: code}
			serves := []schema.GroupVersion{{Group: "always.example.com", Version: "v1"}}
			h, expire := newFrontOf(t, &Next{Tier: "behind", Handler: behind, AlwaysServes: serves})
			discover(t, h).check(t, "down", freshness{group + "/v1": current, "always.example.com/v1": stale}, "always.example.com", group)
			behind.set(func() {
				behind.code, behind.groups = 0, map[string][]string{"a.example.com": {"v1"}, "always.example.com": {"v1"}}
			})
			expire()
			discover(t, h).check(t, "up", freshness{group + "/v1": current, "a.example.com/v1": current, "always.example.com/v1": current},
				"a.example.com", "always.example.com", group)
		})
	}
}

// TestDiscoveryWhilePathsAreNotKnown: a tier that does not know all its groups yet does not
// list fewer.
func TestDiscoveryWhilePathsAreNotKnown(t *testing.T) {
	s := newServer(t, nil)
	if err := s.Install(groupInfo(newPods())); err != nil {
		t.Fatal(err)
	}
	known := make(chan struct{})
	s.AwaitPaths(known)
	h := prepare(s)
	for _, accept := range []string{acceptAggregated, "application/json"} {
		w := do(h, "GET", "/apis", "Accept: "+accept)
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "all known HTTP paths") {
			t.Errorf("%s: %d %q, want 503", accept, w.Code, w.Body)
		}
	}
	close(known)
	discover(t, h).check(t, "known", freshness{group + "/v1": current}, group)
}

// TestDiscoveryAsksInItsOwnName: in one process, the chain of the next tier must not use the
// audit event and the user of the client for the tier's own request.
func TestDiscoveryAsksInItsOwnName(t *testing.T) {
	var auditContexts, otherUsers int
	behind := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		if audit.AuditContextFrom(req.Context()) != nil {
			auditContexts++
		}
		if u, ok := apirequest.UserFrom(req.Context()); !ok || u != documents.Aggregator {
			otherUsers++
		}
	})
	h, _ := newFront(t, behind)
	for _, path := range []string{"/apis", "/"} {
		req := httptest.NewRequest(http.MethodGet, path, nil)
		ctx := apirequest.WithUser(audit.WithAuditContext(req.Context()), &user.DefaultInfo{Name: "alice"})
		h.ServeHTTP(httptest.NewRecorder(), req.WithContext(ctx))
	}
	if auditContexts > 0 || otherUsers > 0 {
		t.Errorf("%d requests have the client's audit context, %d its user", auditContexts, otherUsers)
	}
}

// TestDiscoveryOfATierWithoutGroups: 404 means that there are no groups, unlike any other
// failure.
func TestDiscoveryOfATierWithoutGroups(t *testing.T) {
	behind := &fakeNext{groups: map[string][]string{"a.example.com": {"v1"}}}
	h, expire := newFront(t, behind)
	discover(t, h)
	behind.set(func() { behind.code = http.StatusNotFound })
	expire()
	discover(t, h).check(t, "404", freshness{group + "/v1": current}, group)
}

func TestConcurrentDiscoveryIsShared(t *testing.T) {
	behind := &fakeNext{groups: map[string][]string{"a.example.com": {"v1"}}}
	h, _ := newFront(t, behind)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() { do(h, "GET", "/apis") })
	}
	wait.Wait()
	// Once, unless the 20 requests take longer than discoveryTTL.
	if behind.requests > 5 {
		t.Errorf("20 clients cause %d requests", behind.requests)
	}
}

func TestDiscoveryOfGarbage(t *testing.T) {
	garbage := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) })
	h, _ := newFront(t, garbage)
	discover(t, h).check(t, "garbage", freshness{group + "/v1": current}, group)
}

func TestDiscoveryOfAGroupAndItsVersion(t *testing.T) {
	h, _ := newFront(t, http.NotFoundHandler())
	for path, kind := range map[string]string{
		"/apis/" + group: "APIGroup", "/apis/" + group + "/": "APIGroup",
		"/apis/" + group + "/v1": "APIResourceList", "/apis/" + group + "/v1/": "APIResourceList",
		"/apis": "APIGroupList", "/apis/": "APIGroupList",
	} {
		w := do(h, "GET", path)
		var meta metav1.TypeMeta
		if err := json.Unmarshal(w.Body.Bytes(), &meta); err != nil || w.Code != http.StatusOK || meta.Kind != kind {
			t.Errorf("%s: %d %q, want a %s", path, w.Code, w.Body, kind)
		}
	}
}

// TestLegacyDiscovery: the tiers behind this one have no legacy group and answer 404.
func TestLegacyDiscovery(t *testing.T) {
	var asked []string
	s := newServer(t, withNext(&asked))
	if err := s.Install(newGroupInfo(schema.GroupVersion{Version: "v1"}, newPods())); err != nil {
		t.Fatal(err)
	}
	h := prepare(s)
	for path, kind := range map[string]string{"/api": "APIVersions", "/api/": "APIVersions", "/api/v1": "APIResourceList"} {
		var meta metav1.TypeMeta
		if w := do(h, "GET", path); json.Unmarshal(w.Body.Bytes(), &meta) != nil || meta.Kind != kind || w.Code != http.StatusOK {
			t.Errorf("%s: %d %q, want %s", path, w.Code, w.Body, kind)
		}
		if w := do(h, "POST", path); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, w.Code)
		}
	}
	w := do(h, "GET", "/api", "Accept: "+acceptAggregated)
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Items) != 1 || list.Items[0].Name != "" || list.Items[0].Versions[0].Freshness != current {
		t.Errorf("aggregated: %q, %v", w.Body, err)
	}
	if strings.Contains(do(h, "GET", "/apis").Body.String(), `"name": ""`) {
		t.Error("the legacy group is listed below /apis")
	}
	for _, call := range asked {
		if call != "GET /api" && call != "GET /apis" {
			t.Errorf("asked the next tier for %s", call)
		}
	}
}

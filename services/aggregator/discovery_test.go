package aggregator

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"triune.dev/shared/server/openapi"
)

const acceptV2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// listed formats aggregated discovery as "group/version:freshness:resources".
func (f *fixture) listed() []string {
	f.t.Helper()
	a := f.get("/apis", "Accept", acceptV2)
	if a.code != http.StatusOK || a.header.Get("Content-Type") != acceptV2 {
		return []string{fmt.Sprint(a.code, a.header.Get("Content-Type"), a.body)}
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	a.decode(f.t, &list)
	var lines []string
	for _, group := range list.Items {
		for _, v := range group.Versions {
			lines = append(lines, fmt.Sprintf("%s/%s %s %d", group.Name, v.Version, v.Freshness, len(v.Resources)))
		}
	}
	return lines
}

// lists waits until aggregated discovery consists of exactly these entries.
func (f *fixture) lists(want ...string) {
	f.t.Helper()
	f.eventually("discovery lists what it should", func() (bool, string) {
		diff := cmp.Diff(want, f.listed())
		return diff == "", "(-want +got)\n" + diff
	})
}

var builtIns = []string{
	"apiregistration.k8s.io/v1 Current 1", "apps/v1 Current 1", "autoscaling/v2 Current 1", "autoscaling/v1 Current 1", "apiextensions.k8s.io/v1 Current 1",
}

func TestAggregatedDiscovery(t *testing.T) {
	f := newFixture(t).ready()
	f.lists(builtIns...)
	f.flunders(t)
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Current 1")...)

	f.next.define("foos", "example.com", "v1")
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Current 1", "example.com/v1 Current 1")...)
	f.next.undefine("foos", "example.com", "v1")
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Current 1")...)

	legacy := f.get("/api", "Accept", acceptV2)
	var list apidiscoveryv2.APIGroupDiscoveryList
	legacy.decode(t, &list)
	if len(list.Items) != 1 || list.Items[0].Name != "" || list.Items[0].Versions[0].Resources[0].Resource != "pods" {
		t.Errorf("/api: %s", legacy.body)
	}
}

func TestAggregatedDiscoveryForms(t *testing.T) {
	f := newFixture(t).ready()
	f.lists(builtIns...)
	a := f.get("/apis", "Accept", acceptV2)
	tag := a.header.Get("ETag")
	if !strings.HasPrefix(tag, `"`) || len(tag) != 130 {
		t.Errorf("ETag %s is not a quoted SHA-512", tag)
	}
	if a := f.get("/apis", "Accept", acceptV2, "If-None-Match", tag); a.code != http.StatusNotModified || a.body != "" {
		t.Errorf("unchanged: %d %s", a.code, a.body)
	}
	// v2beta1 was removed in Kubernetes 1.35 (AggregatedDiscoveryRemoveBetaType). Clients that
	// accept it also accept the older list.
	beta := strings.ReplaceAll(acceptV2, "v=v2", "v=v2beta1")
	if a := f.get("/apis", "Accept", beta); a.code != http.StatusNotAcceptable {
		t.Errorf("v2beta1: %d %.80s", a.code, a.body)
	}
	if a := f.get("/apis", "Accept", beta+",application/json"); a.code != http.StatusOK || !strings.Contains(a.body, `"kind":"APIGroupList"`) {
		t.Errorf("v2beta1 or JSON: %d %.80s", a.code, a.body)
	}
	proto := strings.ReplaceAll(acceptV2, "application/json", "application/vnd.kubernetes.protobuf")
	if a := f.get("/apis", "Accept", proto); a.code != http.StatusOK || a.header.Get("Content-Type") != proto || !strings.HasPrefix(a.body, "k8s\x00") {
		t.Errorf("protobuf: %d %s", a.code, a.header.Get("Content-Type"))
	}
}

func TestLegacyDiscovery(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	f.register("wardle.example.com", "v1beta1", "wardle", 443, func(a *apiregistrationv1.APIService) { a.Spec.VersionPriority = 11 })
	f.next.define("foos", "example.com", "v1")

	want := []string{
		"apiregistration.k8s.io: v1 (v1)", "apps: v1 (v1)", "autoscaling: v2 v1 (v2)", "apiextensions.k8s.io: v1 (v1)",
		"wardle.example.com: v1beta1 v1alpha1 (v1beta1)", "example.com: v1 (v1)",
	}
	f.eventually("/apis lists the groups in order", func() (bool, string) {
		var list metav1.APIGroupList
		f.get("/apis").decode(t, &list)
		var got []string
		for _, group := range list.Groups {
			line := group.Name + ":"
			for _, v := range group.Versions {
				line += " " + v.Version
			}
			got = append(got, line+" ("+group.PreferredVersion.Version+")")
		}
		diff := cmp.Diff(want, got)
		return diff == "", diff
	})

	var group metav1.APIGroup
	for _, path := range []string{"/apis/wardle.example.com", "/apis/wardle.example.com/", "/apis/apiregistration.k8s.io"} {
		a := f.get(path)
		a.decode(t, &group)
		if a.code != http.StatusOK || group.Kind != "APIGroup" || !strings.Contains(path, group.Name) {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
	}
	if a := f.get("/apis/unknown.example.com"); a.code != http.StatusTeapot {
		t.Errorf("the document of an unknown group is the next tier's: %d %s", a.code, a.body)
	}
	if a := f.get("/api"); a.code != http.StatusOK || !strings.HasPrefix(a.body, `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"127.0.0.1:443"}]}`) {
		t.Errorf("/api: %d %s", a.code, a.body)
	}
}

// A server that is down becomes Stale within seconds, and discovery never waits for it.
func TestDownServerMakesDiscoveryPartial(t *testing.T) {
	f := newFixture(t).ready()
	e := f.flunders(t)
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Current 1")...)
	down := time.Now()
	e.stop()
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Stale 1")...)
	if took := time.Since(down); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	start := time.Now()
	for range 10 {
		f.get("/apis", "Accept", acceptV2)
		f.get("/apis")
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("20 requests took %v", took)
	}
}

func TestDownNextTierMakesDiscoveryPartial(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Current 1")...)
	f.next.down.Store(true)
	stale := []string{builtIns[0]}
	for _, line := range builtIns[1:] {
		stale = append(stale, strings.Replace(line, "Current", "Stale", 1))
	}
	f.lists(append(stale, "wardle.example.com/v1alpha1 Current 1")...)
	// This tier's own resources are still served.
	if a := f.get(flundersPath); a.code != http.StatusOK {
		t.Errorf("extension server: %d %s", a.code, a.body)
	}
	if a := f.get("/apis/apiregistration.k8s.io/v1/apiservices"); a.code != http.StatusOK {
		t.Errorf("apiservices: %d %s", a.code, a.body)
	}
	if a := f.get("/readyz"); a.code != http.StatusOK {
		t.Errorf("readyz: %d %s", a.code, a.body)
	}
	f.next.down.Store(false)
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Current 1")...)
}

// Servers built before Kubernetes 1.26 have no aggregated discovery.
func TestServerWithoutAggregatedDiscovery(t *testing.T) {
	f := newFixture(t).ready()
	e := f.startExtension("old", func(e *extension) { e.legacyOnly = true })
	f.byName("wardle")
	f.register("wardle.example.com", "v1alpha1", "wardle", e.port())
	f.lists(append(slices.Clone(builtIns), "wardle.example.com/v1alpha1 Current 1")...)
}

func TestServersArePolledConditionally(t *testing.T) {
	f := newFixture(t).ready()
	e := f.flunders(t)
	f.eventually("a conditional request", func() (bool, string) { return e.conditional.Load() > 2, "none" })
}

func TestAutoregistration(t *testing.T) {
	f := newFixture(t).ready()
	get := func(name string) *apiregistrationv1.APIService {
		object, err := f.apiServices.ApiregistrationV1().APIServices().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return &apiregistrationv1.APIService{}
		}
		return object
	}
	core := get("v1.")
	if core.Labels["kube-aggregator.kubernetes.io/automanaged"] != "onstart" || core.Spec.GroupPriorityMinimum != 18000 || core.Spec.VersionPriority != 1 {
		t.Errorf("v1.: %+v", core)
	}
	f.available("v1.apps", apiregistrationv1.ConditionTrue, "Local")
	f.next.define("foos", "example.com", "v1")
	f.available("v1.example.com", apiregistrationv1.ConditionTrue, "Local")
	if label := get("v1.example.com").Labels["kube-aggregator.kubernetes.io/automanaged"]; label != "true" {
		t.Errorf("v1.example.com: label %q", label)
	}
	f.next.undefine("foos", "example.com", "v1")
	f.eventually("v1.example.com goes with its CRD", func() (bool, string) { return get("v1.example.com").Name == "", "there" })

	// The key and the encoding of kube-apiserver.
	stored, err := f.etcd.Get(t.Context(), "/registry/apiregistration.k8s.io/apiservices/v1.apps")
	if err != nil || len(stored.Kvs) != 1 {
		t.Fatalf("etcd: %v, %d keys", err, len(stored.Kvs))
	}
	if value := string(stored.Kvs[0].Value); !strings.HasPrefix(value, `{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1"`) {
		t.Errorf("stored as %.80q", value)
	}
}

// readyz names what it is waiting for, and livez does not restart the process for it.
func TestNotReadyWithoutNextTier(t *testing.T) {
	f := newFixture(t, func(c *Config) {
		next := c.Next.Handler.(*nextTier)
		next.down.Store(true)
		c.Next.Check = func(*http.Request) error {
			if next.down.Load() {
				return errors.New("the next tier is down")
			}
			return nil
		}
	})
	f.eventually("the table is read", func() (bool, string) { return f.server.table.Current() != nil, "" })
	if a := f.get("/readyz?verbose"); a.code != http.StatusInternalServerError || !strings.Contains(a.body, "[-]autoregister-completion failed") {
		t.Errorf("readyz: %d %s", a.code, a.body)
	}
	f.eventually("livez is green", func() (bool, string) { a := f.get("/livez?verbose"); return a.code == http.StatusOK, a.body })
	f.next.down.Store(false)
	f.ready()
}

func TestOpenAPIOverAllServers(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	f.eventually("the v3 index has all", func() (bool, string) {
		var index openapi.Index
		a := f.get("/openapi/v3")
		a.decode(t, &index)
		for _, path := range []string{"api/v1", "apis/apiregistration.k8s.io/v1", "apis/wardle.example.com/v1alpha1", "version"} {
			if _, ok := index.Paths[path]; !ok {
				return false, a.body
			}
		}
		return true, ""
	})
	for path, want := range map[string]string{
		"api/v1":                           `"title":"core"`,
		"apis/wardle.example.com/v1alpha1": `"title":"flunders"`,
		"apis/apiregistration.k8s.io/v1":   `"title":"Kubernetes"`,
	} {
		if a := f.get("/openapi/v3/" + path); a.code != http.StatusOK || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %.200s", path, a.code, a.body)
		}
	}
	// The redirect from an outdated hash to the current one is the only allowed redirect.
	if a := f.get("/openapi/v3/apis/wardle.example.com/v1alpha1?hash=old"); a.code != http.StatusMovedPermanently || !strings.HasPrefix(a.header.Get("Location"), "/openapi/v3/apis/wardle.example.com/v1alpha1?hash=") {
		t.Errorf("old hash: %d, Location %q", a.code, a.header.Get("Location"))
	}
	f.eventually("the v2 document has all", func() (bool, string) {
		a := f.get("/openapi/v2")
		for _, path := range []string{`"/api/v1/"`, `"/apis/apiregistration.k8s.io/v1/apiservices"`, `"/apis/wardle.example.com/v1alpha1/"`} {
			if !strings.Contains(a.body, path) {
				return false, fmt.Sprintf("%d without %s", a.code, path)
			}
		}
		return true, ""
	})
	tag := f.get("/openapi/v2").header.Get("ETag")
	if a := f.get("/openapi/v2", "If-None-Match", tag); tag == "" || a.code != http.StatusNotModified {
		t.Errorf("v2, ETag %s: %d", tag, a.code)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

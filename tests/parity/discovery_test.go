package parity

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	aggregatedV2      = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	aggregatedV2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

func TestDiscovery(t *testing.T) {
	for _, path := range []string{"/api", "/apis"} {
		for name, accept := range map[string]string{
			"json":               "application/json",
			"yaml":               "application/yaml",
			"protobuf":           "application/vnd.kubernetes.protobuf",
			"aggregated":         aggregatedV2,
			"aggregated beta":    aggregatedV2beta1,
			"aggregated or not":  aggregatedV2 + "," + aggregatedV2beta1 + ",application/json",
			"aggregated unknown": "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json",
			"gzip":               "",
		} {
			t.Run(strings.TrimPrefix(path, "/")+" "+name, func(t *testing.T) {
				headers := map[string]string{"Accept": accept}
				if name == "gzip" {
					headers = map[string]string{"Accept-Encoding": "gzip"}
				}
				newPair(t).same(Request{Do: "GET " + path, Headers: headers})
			})
		}
	}
	for _, gv := range groupVersions(t, peers.reference) {
		t.Run(gv.path, func(t *testing.T) {
			p := newPair(t)
			p.same(Request{Do: "GET " + gv.path})
			p.same(Request{Do: "GET " + gv.path, Headers: map[string]string{"Accept": "application/vnd.kubernetes.protobuf"}})
			if gv.path != "/api/v1" {
				p.same(Request{Do: "GET " + gv.path[:strings.LastIndex(gv.path, "/")]})
			}
		})
	}
}

// TestNotModified repeats requests with their ETags: the body is not sent again, and a
// stale ETag gets the whole document.
func TestNotModified(t *testing.T) {
	for path, accept := range map[string]string{
		"/apis":               aggregatedV2,
		"/api":                aggregatedV2,
		"/openapi/v2":         "application/json",
		"/openapi/v3/api/v1":  "application/json",
		"/openapi/v3/version": "application/json",
	} {
		t.Run(path, func(t *testing.T) {
			for _, peer := range []*Peer{peers.reference, peers.tested} {
				first, err := peer.Send(t.Context(), Request{Do: "GET " + path, Headers: map[string]string{"Accept": accept}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				tag := first.Header.Get("Etag")
				if tag == "" {
					t.Errorf("%s: %s has no ETag", peer.Name, path)
					continue
				}
				again, err := peer.Send(t.Context(), Request{Do: "GET " + path, Headers: map[string]string{"Accept": accept, "If-None-Match": tag}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if again.Code != 304 || len(again.Body) > 0 {
					t.Errorf("%s: asked again with its ETag, %s is %d with %d bytes, want 304 with none", peer.Name, path, again.Code, len(again.Body))
				}
				stale, err := peer.Send(t.Context(), Request{Do: "GET " + path, Headers: map[string]string{"Accept": accept, "If-None-Match": `"stale"`}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if stale.Code != 200 || len(stale.Body) == 0 {
					t.Errorf("%s: asked with a stale ETag, %s is %d", peer.Name, path, stale.Code)
				}
			}
		})
	}
}

func TestOpenAPI(t *testing.T) {
	t.Run("v2", func(t *testing.T) {
		p := newPair(t)
		p.sameDocument("/openapi/v2")
		p.same(Request{Do: "GET /openapi/v2?none=1", Headers: map[string]string{"Accept": "application/xml"}})
		p.same(Request{Do: "HEAD /openapi/v2"})
	})
	t.Run("v2 paths that are gone", func(t *testing.T) {
		p := newPair(t)
		p.same(Request{Do: "GET /swagger.json"})
		p.same(Request{Do: "GET /openapi/v2/nothing"})
		p.same(Request{Do: "GET /openapi"})
		p.same(Request{Do: "GET /openapi/v3/apis/none.example/v1"})
		p.same(Request{Do: "GET /openapi/v3/api/v1?hash=stale"})
	})
	index := func(peer *Peer) map[string]struct{ ServerRelativeURL string } {
		a, err := peer.Send(t.Context(), Request{Do: "GET /openapi/v3"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		if err := json.Unmarshal(a.Body, &doc); err != nil {
			t.Fatalf("%s: /openapi/v3: %v: %.200s", peer.Name, err, a.Body)
		}
		return doc.Paths
	}
	want, got := index(peers.reference), index(peers.tested)
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("/openapi/v3 lists %s, which kube-apiserver does not", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		t.Run("v3 "+name, func(t *testing.T) {
			entry, ok := got[name]
			if !ok {
				t.Fatalf("/openapi/v3 does not list %s", name)
			}
			if path, hash, _ := strings.Cut(entry.ServerRelativeURL, "?hash="); path != "/openapi/v3/"+name || len(hash) != 128 {
				t.Errorf("its address is %q, want one like %q", entry.ServerRelativeURL, want[name].ServerRelativeURL)
			}
			p := newPair(t)
			p.sameDocument("/openapi/v3/" + name)
			// The URL with the hash may be cached forever.
			p.reference["url"], p.tested["url"] = want[name].ServerRelativeURL, entry.ServerRelativeURL
			a, err := peers.tested.Send(t.Context(), Request{Do: "GET ${url}"}, p.tested)
			if err != nil {
				t.Fatal(err)
			}
			b, err := peers.reference.Send(t.Context(), Request{Do: "GET ${url}"}, p.reference)
			if err != nil {
				t.Fatal(err)
			}
			if a.Header.Get("Cache-Control") != b.Header.Get("Cache-Control") {
				t.Errorf("Cache-Control under the hash is %q, want %q", a.Header.Get("Cache-Control"), b.Header.Get("Cache-Control"))
			}
		})
	}
}

// sameDocument compares a large document part by part, so that one difference does not hide
// the others: paths and definitions by name.
func (p *pair) sameDocument(path string) {
	p.t.Helper()
	var docs [2]map[string]any
	for i, peer := range []*Peer{peers.reference, peers.tested} {
		a, err := peer.Send(p.t.Context(), Request{Do: "GET " + path}, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		v, err := p.normalisers[i].JSON(a.Body)
		doc, ok := v.(map[string]any)
		if err != nil || !ok || a.Code != 200 {
			p.t.Fatalf("%s: %s: %d %v %.300s", peer.Name, path, a.Code, err, a.Body)
		}
		docs[i] = doc
	}
	differences := compareParts(p.t, path, docs[0], docs[1], 2)
	if differences > 20 {
		p.t.Errorf("%s: %d differences in all", path, differences)
	}
}

// compareParts descends depth levels of objects and reports at most twenty differences; it
// returns their number.
func compareParts(t *testing.T, where string, want, got map[string]any, depth int) (differences int) {
	t.Helper()
	names := slices.Collect(maps.Keys(want))
	for name := range got {
		if _, ok := want[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	report := func(format string, args ...any) {
		if differences++; differences <= 20 {
			t.Errorf(format, args...)
		}
	}
	for _, name := range names {
		w, inWant := want[name]
		g, inGot := got[name]
		wm, wIsMap := w.(map[string]any)
		gm, gIsMap := g.(map[string]any)
		switch {
		case !inWant:
			report("%s has %q, which kube-apiserver has not", where, name)
		case !inGot:
			report("%s has no %q", where, name)
		case wIsMap && gIsMap && depth > 0:
			differences += compareParts(t, where+" "+name, wm, gm, depth-1)
		default:
			if diff := cmp.Diff(w, g); diff != "" {
				report("%s %q (-kube-apiserver +tested):\n%s", where, name, limit(diff, 800))
			}
		}
	}
	return differences
}

type groupVersion struct {
	path      string
	resources []metav1.APIResource
}

// groupVersions returns the group-versions of the reference. Tests that use one that Triune
// lacks will fail.
func groupVersions(t *testing.T, peer *Peer) []groupVersion {
	t.Helper()
	paths := []string{"/api/v1"}
	var groups metav1.APIGroupList
	get(t, peer, "/apis", &groups)
	for _, g := range groups.Groups {
		if strings.HasSuffix(g.Name, ".example") { // left by an earlier case
			continue
		}
		for _, v := range g.Versions {
			paths = append(paths, "/apis/"+v.GroupVersion)
		}
	}
	var all []groupVersion
	for _, path := range paths {
		var list metav1.APIResourceList
		get(t, peer, path, &list)
		all = append(all, groupVersion{path, list.APIResources})
	}
	return all
}

func get(t *testing.T, peer *Peer, path string, into any) {
	t.Helper()
	a, err := peer.Send(t.Context(), Request{Do: "GET " + path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(a.Body, into); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
}

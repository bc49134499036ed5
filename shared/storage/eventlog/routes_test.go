package eventlog

import (
	"fmt"
	"strings"
	"testing"
)

func TestRoutesOfKeys(t *testing.T) {
	routes := NewRoutes("triune", "/registry")
	for _, tc := range []struct{ key, tier, subject string }{
		{"/registry/pods/ns/name", "core", "triune-core.event.pods"},
		{"/registry/services/specs/ns/name", "core", "triune-core.event.services.specs"},
		{"/registry/services/endpoints/ns/name", "core", "triune-core.event.services.endpoints"},
		{"/registry/ranges/serviceips", "core", "triune-core.event.ranges"},
		{"/registry/health", "core", "triune-core.event.health"},
		{"/registry/apiregistration.k8s.io/apiservices/v1.apps", "aggregator", "triune-aggregator.event.apiregistration%2Ek8s%2Eio.apiservices"},
		{"/registry/apiregistration.k8s.io/widgets/a", "extensions", "triune-extensions.event.apiregistration%2Ek8s%2Eio.widgets"},
		{"/registry/apiextensions.k8s.io/customresourcedefinitions/x.y", "extensions", "triune-extensions.event.apiextensions%2Ek8s%2Eio.customresourcedefinitions"},
		{"/registry/example.com/things/ns/a", "extensions", "triune-extensions.event.example%2Ecom.things"},
		{"/registry/example.com", "extensions", "triune-extensions.event.example%2Ecom"},
		{"/registry/odd *>name/x", "core", "triune-core.event.odd%20%2A%3Ename"},
		{"/registry//x", "core", "triune-core.event.%"},
	} {
		for range 2 { // the second time from the cache
			got := routes.Route(tc.key)
			if string(got.Tier) != tc.tier || got.Subject != tc.subject || got.Stream != "triune-"+tc.tier {
				t.Errorf("%s: %+v, want %s of %s", tc.key, got, tc.subject, tc.tier)
			}
		}
	}
	for prefix, want := range map[string]string{
		"/registry/pods/":                "triune-core.event.pods",
		"/registry/pods/ns/":             "triune-core.event.pods",
		"/registry/services/specs/":      "triune-core.event.services.specs",
		"/registry/example.com/things/":  "triune-extensions.event.example%2Ecom.things",
		"/registry/example.com/things/n": "triune-extensions.event.example%2Ecom.things",
		"/registry/pods":                 "", // matches podtemplates, too
		"/registry/services/":            "",
		"/registry/example.com/":         "",
		"/registry/":                     "",
		"/elsewhere/pods/":               "",
	} {
		route, one := routes.PrefixRoute(prefix)
		if one != (want != "") || route.Subject != want {
			t.Errorf("prefix %s: %+v %t, want %q", prefix, route, one, want)
		}
	}
}

// The prefix of the keys may be written as for kube-apiserver.
func TestPrefixIsNormalized(t *testing.T) {
	for prefix, want := range map[string]string{
		"/registry": "/registry/", "registry": "/registry/", "/registry/": "/registry/", "a/b/": "/a/b/", "": "/", "/": "/",
	} {
		if got := NewRoutes("triune", prefix).Prefix(); got != want {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
}

func FuzzSubjectsAreValid(f *testing.F) {
	f.Add("pods/ns/a")
	f.Add("a.b/c d/e")
	f.Add("/\x00\xff.*>/")
	routes := NewRoutes("triune", "/registry/")
	f.Fuzz(func(t *testing.T, key string) {
		subject := routes.Route("/registry/" + key).Subject
		for _, token := range strings.Split(subject, ".") {
			if token == "" || strings.ContainsAny(token, "*> \t\r\n\x00") {
				t.Errorf("%q has the subject %q", key, subject)
			}
		}
	})
}

// CRDs come and go, and their routes with them.
func TestRoutesAreBounded(t *testing.T) {
	r := NewRoutes("triune", "/registry")
	for i := range maxRoutes + 100 {
		if got, want := r.Route(fmt.Sprintf("/registry/g%d.example.com/things/a", i)).Subject, fmt.Sprintf("triune-extensions.event.g%d%%2Eexample%%2Ecom.things", i); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if n := len(r.known); n > maxRoutes {
		t.Errorf("%d routes are remembered", n)
	}
}

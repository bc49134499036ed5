package apiserver

import (
	"slices"
	"testing"
)

func TestPathsOwns(t *testing.T) {
	var p paths
	for _, exact := range []string{"/", "/version", "/apis", "/apis/", "/healthz"} {
		p.addExact(exact)
	}
	for _, prefix := range []string{"/apis/apps/v1/", "/apis/apps/v1beta1/", "/api/v1/", "/openapi/v3/", "/apis/apps/v1/"} {
		p.addPrefix(prefix)
	}
	owned := map[string]bool{
		"/": true, "/version": true, "/apis": true, "/apis/": true,
		"/version/": false, "/versions": false, "/healthz/etcd": false, "": false, "*": false,
		"/api/v1/": true, "/api/v1/pods": true, "/api/v1/namespaces/x/pods/p/log": true,
		"/api/v1": false, "/api/v10/pods": false, "/api/v1beta1": false, "/api": false, "api/v1/pods": false, "//api/v1/pods": false,
		"/apis/apps/v1/deployments": true, "/apis/apps/v1beta1/deployments": true,
		"/apis/apps/v1beta2/deployments": false, "/apis/apps": false, "/apis/app/v1/": false, "/apis/batch/v1/jobs": false,
		"/openapi/v3/apis/apps/v1": true, "/openapi/v3": false,
	}
	for path, want := range owned {
		if got := p.owns(path); got != want {
			t.Errorf("owns(%q) = %v", path, got)
		}
	}
	if !slices.IsSorted(p.prefixes) || len(p.prefixes) != 4 {
		t.Errorf("prefixes %v, want four, sorted", p.prefixes)
	}
	if (&paths{}).owns("/") {
		t.Error("an empty set owns something")
	}
}

func TestPathsList(t *testing.T) {
	var p paths
	for _, path := range []string{"/version", "/apis", "/version"} {
		p.list(path)
	}
	if !slices.Equal(p.listed, []string{"/apis", "/version"}) {
		t.Errorf("listed %v", p.listed)
	}
}

func BenchmarkPathsOwns(b *testing.B) {
	var p paths
	for _, prefix := range []string{"/api/v1/", "/apis/apps/v1/", "/apis/batch/v1/", "/apis/policy/v1/"} {
		p.addPrefix(prefix)
	}
	b.ReportAllocs()
	for b.Loop() {
		p.owns("/apis/apps/v1/namespaces/default/deployments/web")
	}
}

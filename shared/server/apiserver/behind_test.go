package apiserver

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/nexttier"
)

func TestBehind(t *testing.T) {
	replicas := []nexttier.Replica{{Address: "10.0.0.1:6443", Condition: "ready", InFlight: 3}, {Address: "[::1]:6443", Condition: "down"}}
	h, _ := newFrontOf(t, &Next{
		Tier:     "behind",
		Replicas: func() []nexttier.Replica { return replicas },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if info, ok := apirequest.RequestInfoFrom(req.Context()); !ok || info.Path != req.URL.Path {
				t.Errorf("the request info is that of %q, not of %s", info.Path, req.URL.Path)
			}
			_, _ = io.WriteString(w, "behind: "+req.URL.RequestURI())
		}),
	})
	var got Behind
	if w := do(h, "GET", BehindPrefix); json.Unmarshal(w.Body.Bytes(), &got) != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %q", w.Code, w.Body)
	}
	if diff := cmp.Diff(Behind{"behind", replicas}, got); diff != "" {
		t.Errorf("behind (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{
		"10.0.0.1:6443/metrics":                           "/metrics",
		"10.0.0.1:6443/readyz?verbose":                    "/readyz?verbose",
		"10.0.0.1:6443/readyz/etcd":                       "/readyz/etcd",
		"[::1]:6443/triune/next/":                         "/triune/next/",
		"10.0.0.1:6443/triune/next/10.0.0.9:6443/metrics": "/triune/next/10.0.0.9:6443/metrics",
	} {
		if w := do(h, "GET", BehindPrefix+path); w.Code != http.StatusOK || w.Body.String() != "behind: "+want {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{
		"10.0.0.2:6443/metrics", // not a replica
		"10.0.0.1:6443", "10.0.0.1:6443/", "10.0.0.1:6443/metricsx", "10.0.0.1:6443/api/v1/secrets", "10.0.0.1:6443/debug/pprof/heap",
		"10.0.0.1:6443/readyz/../api/v1/secrets", "10.0.0.1:6443/readyz/%2e%2e/api/v1/secrets",
	} {
		if w := do(h, "GET", BehindPrefix+path); w.Code != http.StatusNotFound || decodeStatus(t, w).Reason != "NotFound" {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
	if w := do(h, "POST", BehindPrefix+"10.0.0.1:6443/metrics"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d %q", w.Code, w.Body)
	}
	trusting, _ := newFrontOf(t, &Next{
		Tier: "behind", NeedsCredentials: true,
		Replicas: func() []nexttier.Replica { return replicas },
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "behind") }),
	})
	for header, want := range map[string]int{"Accept: */*": http.StatusOK, "Impersonate-User: bob": http.StatusForbidden} {
		if w := do(trusting, "GET", BehindPrefix+"10.0.0.1:6443/metrics", header); w.Code != want {
			t.Errorf("%s: %d %q, want %d", header, w.Code, w.Body, want)
		}
	}
	alone, _ := newFront(t, http.NotFoundHandler())
	if w := do(alone, "GET", BehindPrefix); w.Code != http.StatusNotFound {
		t.Errorf("with the next tier in the same process: %d", w.Code)
	}
}

package reads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestCorruptObjectGetsUpstreamError checks that an object that cannot be decoded gets
// upstream's error instead of a partial response.
func TestCorruptObjectGetsUpstreamError(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t)
	for i := range 200 {
		pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i))
	}
	if _, err := w.etcd.Put(t.Context(), "/registry/pods/default/n150", "k8s\x00nonsense"); err != nil {
		t.Fatal(err)
	}
	pods.settle(t)
	for _, path := range []string{"/api/v1/namespaces/default/pods/n150", "/api/v1/namespaces/default/pods/n150?resourceVersion=0", "/api/v1/pods", "/api/v1/pods?labelSelector=!app", "/api/v1/pods?labelSelector=app%3Dapp-1"} {
		for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			if a, fell := pods.compare(t, path, accept(media)); !fell || a.status != http.StatusInternalServerError {
				t.Errorf("GET %s: status %d, by the fallback: %t", path, a.status, fell)
			}
		}
	}
	if a, fell := pods.compare(t, "/api/v1/pods?limit=100", nil); fell || a.status != http.StatusOK {
		t.Errorf("the page before it: status %d, by the fallback: %t", a.status, fell)
	}
}

// TestLateCorruptObjectAbortsResponse checks that a response is aborted if an object cannot
// be decoded after a part of the list was sent, and that the next request gets the error.
func TestLateCorruptObjectAbortsResponse(t *testing.T) {
	w := newWorld(t)
	maps := w.configMaps(t)
	for i := range maxMeasured/(200<<10) + 10 {
		m := configMap("default", fmt.Sprintf("n%03d", i), 1)
		m.Data["large"] = strings.Repeat("x", 200<<10)
		maps.create(t, m)
	}
	if _, err := w.etcd.Put(t.Context(), "/registry/configmaps/default/zzz", "k8s\x00nonsense"); err != nil {
		t.Fatal(err)
	}
	maps.settle(t)
	type testCase struct{ media, encoding string }
	for _, tc := range []testCase{
		{"application/json", ""}, {"application/json", "gzip"}, {"application/json;as=Table;g=meta.k8s.io;v=v1", ""},
	} {
		maps.handlers.unencodable.Store(nil)
		header := http.Header{"Accept": {tc.media}, "Accept-Encoding": {tc.encoding}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, maps.ours.URL+"/api/v1/configmaps?includeObject=Object", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		resp, err := plainClient.Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		// The rows of a table are made before those ahead of them are sent.
		if err == nil && tc == (testCase{"application/json", ""}) {
			t.Errorf("%s: the first answer looks whole", tc.media)
		}
		if a, fell := maps.compare(t, "/api/v1/configmaps?includeObject=Object", header); !fell || a.status != http.StatusInternalServerError {
			t.Errorf("%s: status %d, by the fallback: %t", tc.media, a.status, fell)
		}
	}
}

// TestUndecryptableObjectsGoToFallback checks that the fallback tries to decrypt an object
// again, for every kind of request.
func TestUndecryptableObjectsGoToFallback(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t, func(c *kindConfig) {
		c.open = func(_ context.Context, key string, stored []byte) ([]byte, bool, error) {
			if strings.HasSuffix(key, "/n005") {
				return nil, false, errors.New("no key for this")
			}
			return stored, false, nil
		}
	})
	for i := range 10 {
		pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i+1))
	}
	pods.settle(t)
	for path, fallback := range map[string]bool{
		"/api/v1/namespaces/default/pods/n005":                true,
		"/api/v1/namespaces/default/pods/n004":                false,
		"/api/v1/pods":                                        true,
		"/api/v1/pods?limit=3":                                false,
		"/api/v1/pods?labelSelector=!none":                    true,
		"/api/v1/pods?labelSelector=app%3Dapp-1":              true,
		"/api/v1/pods?fieldSelector=metadata.name%3Dn005":     true,
		"/api/v1/pods?fieldSelector=spec.nodeName!%3Dnode-99": true,
	} {
		for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=Table;g=meta.k8s.io;v=v1"} {
			if a, fell := pods.compare(t, path, accept(media)); fell != fallback || a.status != http.StatusOK {
				t.Errorf("GET %s as %s: status %d, by the fallback: %t", path, media, a.status, fell)
			}
		}
	}
}

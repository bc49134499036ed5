package core

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestWhatIsOffByDefault starts a core with features that are off by default, also in
// kube-apiserver.
func TestWhatIsOffByDefault(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CoordinatedLeaderElection, true)
	c := start(t, "--runtime-config=coordination.k8s.io/v1beta1=true", "--enable-logs-handler")
	await(t, "readyz is green", func() bool { code, _, _ := c.get(t, "/readyz"); return code == http.StatusOK })
	t.Run("coordinated leader election", c.testCoordinatedLeaderElection)
	t.Run("log files", func(t *testing.T) {
		for _, path := range []string{"/logs/", "/logs/none-such"} {
			if code, header, body := c.get(t, path); header.Get("Content-Type") == "application/json" {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		if code, _, body := c.get(t, "/openapi/v3/logs"); code != http.StatusOK || !strings.Contains(body, `"logFileListHandler"`) {
			t.Errorf("OpenAPI: %d %s", code, body)
		}
	})
	t.Run("its own requests at the end", c.testItsOwnRequestsAtTheEnd) // last
}

// testItsOwnRequestsAtTheEnd checks that a server that shuts down refuses new requests, but
// not its own requests on behalf of those in flight. It must be the last test.
func (c *cluster) testItsOwnRequestsAtTheEnd(t *testing.T) {
	g := c.server.Generic()
	own, err := kubernetes.NewForConfig(g.LoopbackClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	g.NonLongRunningRequestWaitGroup.Wait()
	if code, header, body := c.get(t, "/api/v1/namespaces/default"); code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("a client's request: %d %s", code, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	made, err := own.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("the server's own: %v", err)
	}
	if fields := made.ManagedFields; len(fields) != 1 || fields[0].Manager != "kube-apiserver" {
		t.Errorf("managed fields %v", fields)
	}
}

// testCoordinatedLeaderElection checks that a LeaseCandidate becomes the holder of a Lease
// (KEP-4355).
func (c *cluster) testCoordinatedLeaderElection(t *testing.T) {
	now := metav1.NowMicro()
	candidate := &coordinationv1beta1.LeaseCandidate{
		ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "kube-system"},
		Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: "component", BinaryVersion: "1.36.0", EmulationVersion: "1.36.0",
			Strategy: coordinationv1.OldestEmulationVersion, RenewTime: &now, PingTime: &now,
		},
	}
	if _, err := c.client.CoordinationV1beta1().LeaseCandidates("kube-system").Create(t.Context(), candidate, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the candidate is elected", func() bool {
		lease, err := c.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "component", metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == "first"
	})
}

func TestLogFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pods.log"), []byte("a line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(filepath.Dir(dir), "secret")
	if err := os.WriteFile(secret, []byte("hidden"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/logs/pods.log":                         {http.StatusOK, "a line\n"},
		"/logs/":                                 {http.StatusOK, `<a href="pods.log">`},
		"/logs/none":                             {http.StatusNotFound, "404 page not found"},
		"/logs/" + strings.Repeat("x", 300):      {http.StatusNotFound, "file not found"},
		"/logs/../" + filepath.Base(secret):      {http.StatusBadRequest, "invalid URL path"},
		"/logs/x/../../" + filepath.Base(secret): {http.StatusBadRequest, "invalid URL path"},
	} {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, "/logs", nil)
		req.URL.Path = path
		logFiles(dir).ServeHTTP(w, req)
		if w.Code != want.code || !strings.Contains(w.Body.String(), want.body) {
			t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body, want.code, want.body)
		}
	}
}

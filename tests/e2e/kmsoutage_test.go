package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/cluster"
)

// TestKMSOutage checks that while the plugin hangs or is down, decrypted objects are
// served, other resources are not affected, and the health check fails; that a server that
// starts meanwhile answers for Secrets as kube-apiserver does; and that everything recovers
// with the plugin.
func TestKMSOutage(t *testing.T) {
	full(t)
	t.Parallel() // health checks cache results for 20 s
	v := newVault(t, everyProvider, 1)
	v.startReference(t)
	v.defineSeals(t)
	namespace := newNamespace(t, v.tested)
	plain := sealedByAll[2]
	for _, s := range []sealed{sealedSecret, sealedCustom, plain} {
		if _, err := s.client(t, v.tested, namespace).Create(t.Context(), s.object("kept", "before"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("hangs", func(t *testing.T) {
		v.plugin.Hang()
		for _, c := range v.servers() {
			v.serves(t, c, namespace, "hangs", sealedSecret, sealedCustom, plain)
			v.healthy(t, c, false)
			v.serves(t, c, namespace, "still", sealedSecret, sealedCustom, plain)
		}
		v.plugin.Resume()
		for _, c := range v.servers() {
			v.healthy(t, c, true)
		}
	})
	t.Run("dies", func(t *testing.T) {
		if err := v.plugin.Stop(); err != nil {
			t.Fatal(err)
		}
		for _, c := range v.servers() {
			v.serves(t, c, namespace, "dies", sealedSecret, sealedCustom, plain)
		}
	})
	t.Run("is away at a start", func(t *testing.T) {
		for _, c := range v.servers() {
			v.restartUnready(t, c)
			v.serves(t, c, namespace, "away", plain)
			v.refuses(t, c, namespace)
		}
	})
	t.Run("comes back", func(t *testing.T) {
		if err := v.plugin.Start(); err != nil {
			t.Fatal(err)
		}
		for _, c := range v.servers() {
			v.healthy(t, c, true)
			for _, url := range replicaURLs(c) {
				eventually(t, 2*patience, func(context.Context) error {
					if code, body := send(t, restConfig(t, c), http.MethodGet, url+"/readyz", ""); code != http.StatusOK {
						return fmt.Errorf("%s: %d %s", url, code, body)
					}
					return nil
				})
			}
			v.serves(t, c, namespace, "back", sealedSecret, sealedCustom, plain)
		}
	})
}

// serves fails the test unless a server reads and writes objects of the given resources
// without delay.
func (v *vault) serves(t *testing.T, c *cluster.Cluster, namespace, suffix string, resources ...sealed) {
	t.Helper()
	for _, s := range resources {
		begin := time.Now()
		client := s.client(t, c, namespace)
		got, err := client.Get(t.Context(), "kept", metav1.GetOptions{})
		if err != nil || wordOf(got) != "before" {
			t.Errorf("%s: get %s: %v, %v", c.Config.Topology, s.Resource, got, err)
		}
		if list, err := client.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) == 0 {
			t.Errorf("%s: list %s: %v, %v", c.Config.Topology, s.Resource, list, err)
		}
		name := string(c.Config.Topology) + "-" + suffix
		if _, err := client.Create(t.Context(), s.object(name, suffix), metav1.CreateOptions{}); err != nil {
			t.Errorf("%s: create %s: %v", c.Config.Topology, s.Resource, err)
			continue
		}
		setWord(t, client, name, "changed")
		if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("%s: delete %s: %v", c.Config.Topology, s.Resource, err)
		}
		// kube-apiserver fills its watch cache again up to 30 s after the outage.
		if took := time.Since(begin); took > 10*time.Second && c.Config.Topology != cluster.KubeAPIServer {
			t.Errorf("%s: %s took %v", c.Config.Topology, s.Resource, took)
		}
	}
}

// healthy waits until the KMS health checks and readyz of all replicas succeed, or fail if
// want is false. After a long outage gRPC waits up to 144 s before it dials a plugin again
// (120 s and a fifth: its connection backoff).
func (v *vault) healthy(t *testing.T, c *cluster.Cluster, want bool) {
	t.Helper()
	for _, url := range replicaURLs(c) {
		eventually(t, 6*patience, func(context.Context) error {
			for _, path := range []string{"/healthz/kms-providers", "/readyz/kms-providers"} {
				if code, body := send(t, restConfig(t, c), http.MethodGet, url+path, ""); (code == http.StatusOK) != want {
					return fmt.Errorf("%s%s: %d %s", url, path, code, body)
				}
			}
			// Restarting the server would not bring the plugin back, and would lose the
			// decrypted objects.
			if code, body := send(t, restConfig(t, c), http.MethodGet, url+"/livez", ""); code != http.StatusOK {
				return fmt.Errorf("%s/livez: %d %s", url, code, body)
			}
			if _, body := send(t, restConfig(t, c), http.MethodGet, url+"/readyz?verbose", ""); !want && !strings.Contains(body, "[-]kms-providers failed") {
				return fmt.Errorf("%s/readyz: %s", url, body)
			}
			return nil
		})
	}
}

// restartUnready kills all serving processes and starts them again, and waits until they
// answer, even if they are not ready.
func (v *vault) restartUnready(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, tier := range c.ServingTiers() {
		c.Kill(tier, 0)
	}
	for _, tier := range c.ServingTiers() {
		if err := c.Process(tier, 0).Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/api/v1/namespaces/default/configmaps", "/apis/vault.triune.dev/v1", "/apis/apiregistration.k8s.io/v1/apiservices"} {
		eventually(t, 2*patience, func(ctx context.Context) error {
			_, err := clientset(t, c).RESTClient().Get().AbsPath(path).DoRaw(ctx)
			return err
		})
	}
}

// refuses fails the test unless a server answers 500 to every request that needs the
// plugin. kube-apiserver answers a LIST with 429; see docs/divergences.md.
func (v *vault) refuses(t *testing.T, c *cluster.Cluster, namespace string) {
	t.Helper()
	for _, s := range []sealed{sealedSecret, sealedCustom} {
		path := "/apis/" + s.Group + "/" + s.Version
		if s.Group == "" {
			path = "/api/" + s.Version
		}
		path += "/namespaces/" + namespace + "/" + s.Resource
		body := fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": "fresh"}}`, s.GroupVersion(), s.kind)
		for _, r := range []struct{ method, path, body string }{
			{http.MethodGet, path + "/kept", ""}, {http.MethodGet, path, ""}, {http.MethodGet, path + "?resourceVersion=0", ""}, {http.MethodGet, path + "?limit=1", ""},
			{http.MethodPost, path, body}, {http.MethodPut, path + "/kept", strings.Replace(body, "fresh", "kept", 1)},
			{http.MethodDelete, path + "/kept", ""},
		} {
			want, key := http.StatusInternalServerError, ""
			if r.method == http.MethodGet && !strings.HasSuffix(r.path, "kept") {
				key = s.key(namespace, "kept") // a list may name any of several keys
				if c.Config.Topology == cluster.KubeAPIServer && !strings.Contains(r.path, "limit") {
					want = http.StatusTooManyRequests
				}
			}
			code, answer := send(t, restConfig(t, c), r.method, c.URL+r.path, r.body)
			for end := time.Now().Add(patience); strings.Contains(answer, "storage is (re)initializing") && time.Now().Before(end); {
				// kube-apiserver's watch cache has not tried to read the objects yet.
				time.Sleep(100 * time.Millisecond)
				code, answer = send(t, restConfig(t, c), r.method, c.URL+r.path, r.body)
			}
			if code != want || !strings.Contains(answer, key) || !strings.Contains(answer, "got unexpected nil transformer") {
				t.Errorf("%s: %s %s: %d %s, want %d and %q", c.Config.Topology, r.method, r.path, code, answer, want, key)
			}
		}
	}
}

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"triune.dev/tests/cluster"
	"triune.dev/tests/kms"
)

// waitForKey waits until every replica that uses the plugin knows the encrypting key.
// Health checks make them ask.
func (v *vault) waitForKey(t *testing.T, servers ...*cluster.Cluster) {
	t.Helper()
	hash := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(v.plugin.KeyID())))
	for _, c := range servers {
		for _, url := range replicaURLs(c) {
			eventually(t, 90*time.Second, func(context.Context) error {
				send(t, restConfig(t, c), http.MethodGet, url+"/healthz/kms-providers", "")
				_, metrics := send(t, restConfig(t, c), http.MethodGet, url+"/metrics", "")
				known := 0
				for line := range strings.Lines(metrics) {
					if strings.HasPrefix(line, "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{") && strings.Contains(line, hash) {
						known++
					}
				}
				if known != 2 { // each of the two providers
					return fmt.Errorf("%s: %d providers have learned of the new key", url, known)
				}
				return nil
			})
		}
	}
}

// TestKeyRotation checks that after a rotation in the plugin, writes use the new key, older
// objects stay readable and are encrypted again by an update without changes, and the old
// key is then no longer needed.
func TestKeyRotation(t *testing.T) {
	full(t)
	t.Parallel() // waits for health checks
	v := newVault(t, everyProvider, *replicas)
	v.startReference(t)
	v.defineSeals(t)
	namespace := newNamespace(t, v.tested)
	old := v.plugin.KeyID()
	kinds := map[string]sealed{"vault": sealedSecret, "sealer": sealedCustom}
	for _, s := range kinds {
		for _, name := range []string{"old-1", "old-2"} {
			if _, err := s.client(t, v.tested, namespace).Create(t.Context(), s.object(name, "before"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := v.plugin.Rotate(); err != nil {
		t.Fatal(err)
	}
	v.waitForKey(t, v.servers()...)
	for provider, s := range kinds {
		for i, writer := range v.servers() {
			client, name := s.client(t, writer, namespace), fmt.Sprintf("old-%d", i+1)
			key := s.key(namespace, name)
			for _, c := range v.servers() {
				got, err := s.client(t, c, namespace).Get(t.Context(), name, metav1.GetOptions{})
				if err != nil || wordOf(got) != "before" {
					t.Fatalf("%s: %v, %v", c.Config.Topology, got, err)
				}
			}
			if id := v.keyID(t, provider, key); id != old {
				t.Errorf("%s is encrypted with %s before it is written again, want %s", key, id, old)
			}
			same, err := client.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_, before := v.stored(t, key)
			for range 2 {
				if _, err := client.Update(t.Context(), same, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				_, after := v.stored(t, key)
				if id := v.keyID(t, provider, key); id != v.plugin.KeyID() || after == before {
					t.Errorf("%s: an update that changes nothing leaves it with %s at %d, want %s", key, id, after, v.plugin.KeyID())
				}
				if same, err = client.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
					t.Fatal(err)
				}
				before-- // the second write changes nothing
			}
			fresh := fmt.Sprintf("fresh-%d", i)
			if _, err := client.Create(t.Context(), s.object(fresh, "after"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if id := v.keyID(t, provider, s.key(namespace, fresh)); id != v.plugin.KeyID() {
				t.Errorf("%s writes with %s, want %s", writer.Config.Topology, id, v.plugin.KeyID())
			}
		}
	}
	v.plugin.Forget(old)
	for _, tier := range v.tested.ServingTiers() {
		for i := 0; v.tested.Process(tier, i) != nil; i++ {
			if err := v.tested.Restart(t.Context(), tier, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, s := range kinds {
		for _, c := range v.servers() {
			list, err := s.client(t, c, namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 4 {
				t.Errorf("%s: without the old key: %v, %v", c.Config.Topology, list, err)
			}
		}
	}
}

// TestRotationUnderLoad replaces the providers of Secrets in the three steps of
// docs/security.md while clients read and write. No request fails, and afterwards the old
// provider is not needed.
func TestRotationUnderLoad(t *testing.T) {
	full(t)
	t.Parallel() // the file is checked once a minute
	const plain = "identity: {}"
	old := localKey("aesgcm", "one")
	v := newVault(t, func(*kms.Plugin) string { return encryptionConfiguration(encrypted("secrets", old, plain)) }, *replicas)
	next := kmsKey(v.plugin, "vault")
	namespace := newNamespace(t, v.tested)
	load := v.load(t, namespace)
	configure := func(providers ...string) {
		t.Helper()
		before := load.answered.Load()
		reload(t, v.tested, v.file, encryptionConfiguration(encrypted("secrets", providers...)))
		if load.answered.Load() == before {
			t.Error("no request was answered meanwhile")
		}
	}
	configure(old, next, plain)
	configure(next, old, plain)
	secrets := clientset(t, v.tested).CoreV1().Secrets("")
	all, err := secrets.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) == 0 {
		t.Fatalf("%d Secrets, %v", len(all.Items), err)
	}
	for _, secret := range all.Items {
		own := clientset(t, v.tested).CoreV1().Secrets(secret.Namespace)
		if _, err := own.Patch(t.Context(), secret.Name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := v.etcd.Get(t.Context(), "/registry/secrets/", clientv3.WithPrefix())
	if err != nil || len(stored.Kvs) < len(all.Items) {
		t.Fatalf("etcd has %d Secrets, %v", len(stored.Kvs), err)
	}
	for _, item := range stored.Kvs {
		if !bytes.HasPrefix(item.Value, []byte("k8s:enc:kms:v2:vault:")) {
			t.Errorf("etcd has %.40q under %s", item.Value, item.Key)
		}
	}
	configure(next)
	load.end(t)
	// The kube-apiserver does not need it either.
	v.startReference(t)
	for _, c := range v.servers() {
		for _, version := range []string{"", "0"} {
			list, err := clientset(t, c).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{ResourceVersion: version})
			if err != nil || len(list.Items) != len(all.Items) {
				t.Errorf("%s: %d Secrets, %v, want %d", c.Config.Topology, len(list.Items), err, len(all.Items))
			}
		}
	}
}

// load is a number of clients that write Secrets of their own and read all.
type load struct {
	answered atomic.Int64
	stop     context.CancelFunc
	clients  sync.WaitGroup
}

// load starts the clients. A failing request fails the test.
func (v *vault) load(t *testing.T, namespace string) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{stop: stop}
	t.Cleanup(func() { l.end(t) })
	base := v.tested.URL + "/api/v1/namespaces/" + namespace + "/secrets"
	for i := range 8 {
		name := fmt.Sprintf("load-%d", i)
		body := func(n int) string {
			return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": %q}, "stringData": {"n": "%d"}}`, name, n)
		}
		client, err := rest.HTTPClientFor(restConfig(t, v.tested))
		if err != nil {
			t.Fatal(err)
		}
		expect := func(method, url, body string, code int, text string) {
			got, answer, err := sendBy(ctx, client, method, url, body)
			switch {
			case ctx.Err() != nil:
			case err != nil || got != code || !strings.Contains(answer, text):
				t.Errorf("%s %s: %d %s, %v, want %d and %q", method, url, got, answer, err, code, text)
			default:
				l.answered.Add(1)
			}
		}
		expect(http.MethodPost, base, body(0), http.StatusCreated, name)
		l.clients.Go(func() {
			for n := 1; ctx.Err() == nil && !t.Failed(); n++ {
				expect(http.MethodPut, base+"/"+name, body(n), http.StatusOK, name)
				expect(http.MethodGet, base+"/"+name, "", http.StatusOK, base64.StdEncoding.EncodeToString(fmt.Append(nil, n)))
				expect(http.MethodGet, base+"?limit=500", "", http.StatusOK, base64.StdEncoding.EncodeToString(fmt.Append(nil, n)))
				expect(http.MethodGet, base+"/"+name+"?resourceVersion=0", "", http.StatusOK, name)
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return l
}

func (l *load) end(t *testing.T) {
	l.stop()
	l.clients.Wait()
	if n := l.answered.Load(); n < 100 {
		t.Errorf("only %d requests were answered", n)
	}
}

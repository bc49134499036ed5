package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/cluster"
)

// verboseFlags returns flags for the highest useful verbosity, and for auditing everything
// without bodies; the audit logs go to dir.
func verboseFlags(t *testing.T, dir string) []string {
	t.Helper()
	write(t, dir, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	write(t, dir, "audit.log", "") // all append to one file, which must exist before any of them would create it
	return []string{"-v=6", "--audit-policy-file=" + filepath.Join(dir, "policy.yaml"), "--audit-log-path=" + filepath.Join(dir, "audit.log")}
}

// diagnosticPaths are the paths at which a server describes itself.
var diagnosticPaths = []string{
	"/metrics", "/metrics/slis", "/statusz", "/flagz", "/configz", "/readyz?verbose", "/livez?verbose", "/triune/settings",
	"/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/cmdline", "/debug/flags/v",
	"/debug/api_priority_and_fairness/dump_priority_levels", "/debug/api_priority_and_fairness/dump_queues", "/debug/api_priority_and_fairness/dump_requests",
}

// checkNoLeaks fails if the content of a Secret or of an encrypted custom resource, or a
// key, is found anywhere but in answers to requests for it.
func (v *vault) checkNoLeaks(t *testing.T, namespace, dir string) {
	const treasure = "treasure-of-the-sierra-madre"
	sum := sha256.Sum256([]byte("one"))
	// JSON has the content of a Secret in base64; the bytes that follow change the last
	// characters.
	hidden := [][]byte{[]byte(treasure), []byte(base64.StdEncoding.EncodeToString([]byte(treasure))[:32]), sum[:], []byte(base64.StdEncoding.EncodeToString(sum[:]))}
	secret := func(where string, content []byte) {
		t.Helper()
		for _, h := range hidden {
			if i := bytes.Index(content, h); i >= 0 {
				t.Errorf("%s has %q: ...%q", where, h, content[max(0, i-200):min(len(content), i+len(h)+40)])
			}
		}
	}
	if v.tested.Process(cluster.NATS, 0) == nil {
		v.handle(t, namespace, treasure)
	} else {
		messages := subscribeAll(t, v.tested.ReplicaURL(cluster.NATS, 0))
		v.handle(t, namespace, treasure)
		about := 0
		for _, m := range logged(t, v.tested.ReplicaURL(cluster.NATS, 0)) {
			if bytes.Contains(m.Data, []byte("/registry/secrets/"+namespace)) {
				about++
			}
			secret("the message of "+m.Subject, fmt.Appendf(nil, "%s %v %s", m.Subject, m.Header, m.Data))
		}
		if about == 0 {
			t.Error("NATS has no message about a Secret")
		}
		for _, m := range messages() {
			secret("a message to "+m.Subject, fmt.Appendf(nil, "%s %v %s %s", m.Subject, m.Header, m.Reply, m.Data))
		}
	}

	for _, file := range append(logFiles(t, v.tested), filepath.Join(dir, "audit.log")) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file == filepath.Join(dir, "audit.log") && !bytes.Contains(content, []byte(namespace+"/secrets/kept")) {
			t.Errorf("%s does not mention the Secret", file)
		}
		secret(file, content)
	}
	for _, url := range replicaURLs(v.tested) {
		for _, path := range diagnosticPaths {
			code, body := send(t, restConfig(t, v.tested), http.MethodGet, url+path, "")
			if path == "/metrics" && code != http.StatusOK {
				t.Errorf("%s%s: %d", url, path, code)
			}
			secret(url+path, []byte(body))
		}
	}
}

// handle writes and reads a word in a Secret and a custom resource in many ways, and sends
// some requests that are refused.
func (v *vault) handle(t *testing.T, namespace, word string) {
	t.Helper()
	k := newKubectl(t, v.tested, namespace)
	client := clientset(t, v.tested).CoreV1().Secrets(namespace)
	made, err := client.Create(t.Context(), &corev1.Secret{ // in protobuf
		ObjectMeta: metav1.ObjectMeta{Name: "kept", Annotations: map[string]string{"note": word + "-0"}}, StringData: map[string]string{"word": word + "-1"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, manifest := range []string{
		"apiVersion: v1\nkind: Secret\nmetadata: {name: applied}\nstringData: {word: %s}\n",
		"apiVersion: vault.triune.dev/v1\nkind: Seal\nmetadata: {name: applied}\nspec: {word: %s}\n",
	} {
		k.Stdin(fmt.Sprintf(manifest, word+"-1")).Run("apply", "-f", "-")
		k.Stdin(fmt.Sprintf(manifest, word+"-2")).Run("apply", "-f", "-")
		k.Stdin(fmt.Sprintf(manifest, word+"-3")).Run("apply", "--server-side", "--force-conflicts", "-f", "-")
	}
	k.Run("get", "secrets,seals.vault.triune.dev", "-o", "yaml")
	k.Run("get", "secrets,seals.vault.triune.dev")
	k.Run("patch", "secret/kept", "--type=json", "-p", `[{"op": "add", "path": "/metadata/annotations/more", "value": "`+word+`"}]`)
	made.StringData = map[string]string{"word": word + "-9"}
	if _, err := client.Update(t.Context(), made, metav1.UpdateOptions{}); err == nil {
		t.Error("an update of what has changed succeeds")
	}
	secrets, seals := "/api/v1/namespaces/"+namespace+"/secrets", "/apis/vault.triune.dev/v1/namespaces/"+namespace+"/seals"
	of := base64.StdEncoding.EncodeToString([]byte(word))
	for _, bad := range []struct{ method, path, body string }{
		{http.MethodPost, secrets, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"bad"},"data":{"word":"` + of + `"`},
		{http.MethodPost, secrets, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"bad"},"data":{"word":"` + word + `"}}`},
		{http.MethodPost, secrets, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"bad"},"type":"kubernetes.io/dockerconfigjson","data":{".dockerconfigjson":"` + of + `"}}`},
		{http.MethodPost, secrets, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"bad/"},"data":{"word":"` + of + `"}}`},
		{http.MethodPut, secrets + "/kept", `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"kept"},"type":"other","data":{"word":"` + of + `"}}`},
		{http.MethodPost, seals, `{"kind":"Seal","apiVersion":"vault.triune.dev/v1","metadata":{"name":"bad"},"spec":{"word":"` + word + `"}`},
		{http.MethodPost, seals, `{"kind":"Seal","apiVersion":"vault.triune.dev/v1","metadata":{"name":"bad/"},"spec":{"word":"` + word + `"}}`},
	} {
		if code, answer := send(t, restConfig(t, v.tested), bad.method, v.tested.URL+bad.path, bad.body); code < 400 || code >= 500 {
			t.Errorf("%s %s %s: %d %s", bad.method, bad.path, bad.body, code, answer)
		}
	}
	k.Run("delete", "secrets/kept", "secrets/applied", "seals.vault.triune.dev/applied", "--wait=false")
	// Audit events are in the order of requests, but may be written late.
	_, err = client.Get(context.Background(), "kept", metav1.GetOptions{})
	if err == nil {
		t.Error("a Secret that was deleted is there")
	}
}

// subscribeAll subscribes to all subjects of NATS; the returned function ends that and
// returns the messages.
func subscribeAll(t *testing.T, url string) func() []*nats.Msg {
	t.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	var mu sync.Mutex
	var all []*nats.Msg
	if _, err := conn.Subscribe(">", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, m)
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() []*nats.Msg {
		if err := conn.Flush(); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 {
			t.Error("no message was received")
		}
		return all
	}
}

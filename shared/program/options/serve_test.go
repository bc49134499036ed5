package options

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/version"

	"triune.dev/shared/process/pki"
	_ "triune.dev/shared/process/release"
	"triune.dev/shared/testing/polltest"
)

func verifyOptions(pool *x509.CertPool) x509.VerifyOptions {
	return x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
}

// fakeCore is a core whose only objects are a cluster role and its binding. It records
// the requests.
type fakeCore struct {
	server   *httptest.Server
	mu       sync.Mutex
	requests []string // "user path"
}

func newFakeCore(t *testing.T, made *pki.PKI) *fakeCore {
	t.Helper()
	c := &fakeCore{}
	c.server = httptest.NewUnstartedServer(c)
	certificate, err := made.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pki.LoadPool(made.FrontProxyCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	c.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	c.server.EnableHTTP2 = true
	c.server.StartTLS()
	t.Cleanup(func() { c.server.CloseClientConnections(); c.server.Close() })
	return c
}

func (c *fakeCore) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.mu.Lock()
	c.requests = append(c.requests, req.Header.Get("X-Remote-User")+" "+req.URL.Path)
	c.mu.Unlock()
	switch {
	case req.URL.Query().Get("watch") != "":
		if req.URL.Query().Get("sendInitialEvents") != "" {
			http.Error(w, "no watch lists here", http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-req.Context().Done()
	case strings.HasSuffix(req.URL.Path, "/clusterrolebindings"):
		answer(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"b","managedFields":[{"manager":"m"}]},
			"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"auditors"}],
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"}}]}`)
	case strings.HasSuffix(req.URL.Path, "/clusterroles"):
		answer(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"r"},"rules":[{"verbs":["get"],"nonResourceURLs":["/version"]}]}]}`)
	case req.URL.Path == "/api/v1/pods":
		answer(w, `"core"`)
	case strings.HasPrefix(req.URL.Path, "/api"):
		answer(w, `{"metadata":{"resourceVersion":"7"},"items":[]}`)
	default:
		http.NotFound(w, req)
	}
}

func answer(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, body)
}

func (c *fakeCore) received(request string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.requests, request)
}

// await waits until ok returns true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, 30*time.Second, what, ok)
}

func client(t *testing.T, made *pki.PKI, pair pki.Pair) *http.Client {
	t.Helper()
	pool, err := pki.LoadPool(made.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pair.Load()
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{certificate}}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// TestServe runs a middle and a last tier from the command line to the shutdown.
func TestServe(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{Clients: []pki.Client{
		{Name: "auditor", CommonName: "ann", Organizations: []string{"auditors"}},
		{Name: "nobody", CommonName: "ned"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range []Tier{middle, last} {
		t.Run(tier.Name, func(t *testing.T) {
			core := newFakeCore(t, made)
			// The first check of the log starts a goroutine that never ends.
			if err := healthz.LogHealthz.Check(nil); err != nil {
				t.Fatal(err)
			}
			leaks := goleak.IgnoreCurrent()
			args := []string{
				"--bind-address=127.0.0.1", "--secure-port=" + freePort(t), "--etcd-servers=http://127.0.0.1:1",
				"--tls-cert-file=" + made.Serving[tier.Name].CertFile, "--tls-private-key-file=" + made.Serving[tier.Name].KeyFile,
				"--client-ca-file=" + made.ClusterCA.CertFile,
				"--requestheader-client-ca-file=" + made.FrontProxyCA.CertFile,
				"--requestheader-allowed-names=" + pki.FrontProxyClientName,
				"--requestheader-username-headers=X-Remote-User",
				"--proxy-client-cert-file=" + made.FrontProxyClient.CertFile, "--proxy-client-key-file=" + made.FrontProxyClient.KeyFile,
			}
			if tier.Admission != nil {
				// Policies wait for a signal that only the server of k8s.io/apiserver sends.
				args = append(args, "--disable-admission-plugins=ValidatingAdmissionPolicy,MutatingAdmissionPolicy")
			}
			flag := "core"
			if tier.Next != "" {
				flag = "next"
			}
			args = append(args, "--"+flag+"-url="+core.server.URL, "--"+flag+"-ca-file="+made.ClusterCA.CertFile)
			o := parse(t, tier, args...)
			if problems := o.Validate(); len(problems) > 0 {
				t.Fatal(problems)
			}
			config, err := o.Config(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			completed, err := config.Complete()
			if err != nil {
				t.Fatal(err)
			}
			server, err := completed.New()
			if err != nil {
				t.Fatal(err)
			}
			if err := config.Attach(server); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- server.Prepare().Run(ctx) }()

			base := "https://" + config.Generic.SecureServing.Listener.Addr().String()
			admin := client(t, made, made.Admin)
			await(t, "readyz", func() bool { code, _ := get(t, admin, base+"/readyz"); return code == http.StatusOK })
			await(t, "the rules are watched", func() bool { return config.Rules.Age() == 0 })
			if !core.received("system:triune:" + tier.Name + " /apis/rbac.authorization.k8s.io/v1/clusterroles") {
				t.Error("core got no request for cluster roles with the tier's identity")
			}
			bindings, err := config.Informers.Rbac().V1().ClusterRoleBindings().Lister().Get("b")
			if err != nil || bindings.ManagedFields != nil {
				t.Errorf("the informer has %v (%v), want a binding without managed fields", bindings, err)
			}

			// The RBAC rules of core decide: only auditors may read /version.
			if code, body := get(t, client(t, made, made.Clients["auditor"]), base+"/version"); code != http.StatusOK || !strings.Contains(body, "v1.36.3") {
				t.Errorf("/version for an auditor: %d %s", code, body)
			}
			if code, body := get(t, client(t, made, made.Clients["nobody"]), base+"/version"); code != http.StatusForbidden {
				t.Errorf("/version for somebody else: %d %s", code, body)
			}
			// Requests that the tier does not own go to the next one, with the user.
			code, body := get(t, admin, base+"/api/v1/pods")
			switch {
			case tier.Next != "" && (code != http.StatusOK || body != `"core"` || !core.received("kubernetes-admin /api/v1/pods")):
				t.Errorf("/api/v1/pods: %d %s", code, body)
			case tier.Next == "" && code != http.StatusNotFound:
				t.Errorf("/api/v1/pods: %d %s, want 404", code, body)
			}
			// The tier calls itself with all rights.
			loopback, err := kubernetes.NewForConfig(config.Generic.LoopbackClientConfig)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := loopback.Discovery().ServerVersion(); err != nil || info.GitVersion != version.Get().GitVersion {
				t.Errorf("loopback: %v, %v", info, err)
			}
			// The error of a port in use names the flag.
			if _, err := parse(t, tier, args...).Config(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("--secure-port=%d", o.SecureServing.BindPort)) {
				t.Errorf("a port in use: %v", err)
			}

			admin.CloseIdleConnections()
			stop()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the server does not shut down")
			}
			core.server.CloseClientConnections()
			goleak.VerifyNone(t, leaks)
		})
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

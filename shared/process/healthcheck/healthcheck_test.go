package healthcheck

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"triune.dev/shared/process/pki"
)

func TestCheck(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := made.EtcdServer.Load()
	if err != nil {
		t.Fatal(err)
	}
	clients, err := pki.LoadPool(made.EtcdCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(made.Dir, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/readyz":
			_, _ = w.Write([]byte("ok"))
		case "/failing":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("[+]ping ok\n[-]etcd failed: reason withheld\n[-]informer-sync failed\nhealthz check failed\n"))
		case "/token":
			if req.Header.Get("Authorization") != "Bearer secret" {
				w.WriteHeader(http.StatusUnauthorized)
			}
		case "/hang":
			<-hang
		default:
			http.Error(w, "not here", http.StatusNotFound)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.StartTLS()
	t.Cleanup(func() { close(hang); server.Close() })

	for name, test := range map[string]struct {
		change func(*Check)
		want   []string // parts of the error; none if healthy
	}{
		"healthy":          {func(*Check) {}, nil},
		"a token":          {func(c *Check) { c.URL, c.TokenFile = server.URL+"/token", token }, nil},
		"no token":         {func(c *Check) { c.URL = server.URL + "/token" }, []string{"401"}},
		"a missing token":  {func(c *Check) { c.TokenFile = token + ".gone" }, []string{"token.gone"}},
		"failed checks":    {func(c *Check) { c.URL += "/../failing" }, []string{"500", "[-]etcd failed", "[-]informer-sync failed"}},
		"another answer":   {func(c *Check) { c.URL += "/../gone" }, []string{"404 Not Found", "not here"}},
		"no answer":        {func(c *Check) { c.URL, c.Timeout = server.URL+"/hang", 50*time.Millisecond }, []string{"/hang", "no answer within 50ms"}},
		"nobody listens":   {func(c *Check) { c.URL = "https://127.0.0.1:1/readyz" }, []string{"127.0.0.1:1", "refused"}},
		"another CA":       {func(c *Check) { c.CAFile = made.ClusterCA.CertFile }, []string{"unknown authority"}},
		"no CA":            {func(c *Check) { c.CAFile = filepath.Join(made.Dir, "gone.crt") }, []string{"gone.crt"}},
		"no certificate":   {func(c *Check) { c.Client = pki.Pair{} }, []string{"certificate required"}},
		"a missing key":    {func(c *Check) { c.Client.KeyFile = filepath.Join(made.Dir, "gone.key") }, []string{"gone.key"}},
		"something no URL": {func(c *Check) { c.URL = "127.0.0.1:%" }, []string{"127.0.0.1:%"}},
	} {
		t.Run(name, func(t *testing.T) {
			check := Check{URL: server.URL + "/readyz", CAFile: made.EtcdCA.CertFile, Client: made.EtcdClient, Timeout: 10 * time.Second}
			test.change(&check)
			check.URL = strings.ReplaceAll(check.URL, "/readyz/..", "")
			err := check.Run(t.Context())
			if (err == nil) != (test.want == nil) {
				t.Fatalf("got %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
			if err != nil && strings.Contains(err.Error(), "[+]") {
				t.Errorf("%q names a check that succeeds", err)
			}
		})
	}
}

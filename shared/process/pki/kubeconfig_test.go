package pki_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/process/pki"
)

func TestKubeconfigReachesAServerThatAsksForAClientCertificate(t *testing.T) {
	dir := t.TempDir()
	p := ensure(t, dir, pki.Options{})
	serving, err := p.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientCAs: pool(t, p.ClusterCA), ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	defer server.Close()

	path := filepath.Join(dir, "admin.kubeconfig")
	access := pki.Access{Server: server.URL, CAFile: p.ClusterCA.CertFile, Client: p.Admin}
	if err := pki.WriteKubeconfig(path, access); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := pki.WriteKubeconfig(path, access); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(path); err != nil || !os.SameFile(info, again) {
		t.Errorf("an equal kubeconfig was replaced (%v)", err)
	}

	raw, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if raw.CurrentContext != "triune" {
		t.Errorf("current context %q", raw.CurrentContext)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	response, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != "kubernetes-admin" {
		t.Errorf("the server saw %q (%v)", body, err)
	}
}

func TestWriteKubeconfigNamesTheMissingFile(t *testing.T) {
	dir := t.TempDir()
	p := ensure(t, dir, pki.Options{})
	remove(t, p.Admin.KeyFile)
	err := pki.WriteKubeconfig(filepath.Join(dir, "c"), pki.Access{Server: "https://x", CAFile: p.ClusterCA.CertFile, Client: p.Admin})
	if err == nil || !strings.Contains(err.Error(), "admin.key") {
		t.Errorf("error %v", err)
	}
}

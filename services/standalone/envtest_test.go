package standalone

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/process/pki"
)

// TestEnvtest starts two servers at once in one directory, as test packages do by
// controller-runtime's envtest, with the flags of its apiServer defaults. Each uses the
// certificate in --cert-dir, answers strangers at /healthz, has the namespace default, and
// leaves no file behind.
func TestEnvtest(t *testing.T) {
	working := t.TempDir()
	t.Run("servers", func(t *testing.T) {
		for _, name := range []string{"first", "second"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				useAsEnvtest(t, working)
			})
		}
	})
	if left, err := os.ReadDir(working); err != nil || len(left) != 0 {
		t.Errorf("left behind in the working directory: %v, %v", left, err)
	}
}

func useAsEnvtest(t *testing.T, working string) {
	t.Helper()
	made, err := pki.Ensure(filepath.Join(t.TempDir(), "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	certDir := t.TempDir()
	serving := made.Serving["aggregator"]
	for to, from := range map[string]string{"apiserver.crt": serving.CertFile, "apiserver.key": serving.KeyFile} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(certDir, to), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := launchAs(t, "/assets/kube-apiserver", working, "",
		"--allow-privileged=true", "--authorization-mode=RBAC", "--cert-dir="+certDir,
		"--client-ca-file="+made.ClusterCA.CertFile, "--disable-admission-plugins=ServiceAccount",
		"--etcd-servers="+outsideEtcd(t), "--service-account-issuer=https://127.0.0.1/",
		"--service-account-key-file="+serving.CertFile, "--service-account-signing-key-file="+serving.KeyFile,
		"--service-cluster-ip-range=10.0.0.0/24",
	)
	roots, err := pki.LoadPool(made.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}, Timeout: time.Second}
	var served *x509.Certificate
	p.await("healthz", func() bool {
		response, err := stranger.Get("https://" + address + "/healthz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		served = response.TLS.PeerCertificates[0]
		return response.StatusCode == http.StatusOK
	})
	if want, err := serving.Load(); err != nil || !served.Equal(want.Leaf) {
		t.Errorf("another certificate than that in --cert-dir: %v", err)
	}
	kubeconfig := filepath.Join(made.Dir, "kubeconfig")
	if err := pki.WriteKubeconfig(kubeconfig, pki.Access{Server: "https://" + address, CAFile: made.ClusterCA.CertFile, Client: made.Admin}); err != nil {
		t.Fatal(err)
	}
	client := p.ready(kubeconfig)
	p.await("namespace default", func() bool {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	p.stop()
	for dir, want := range map[string]int{certDir: 2, p.tmp: 0} {
		if files, err := os.ReadDir(dir); err != nil || len(files) != want {
			t.Errorf("%s has %v, %v", dir, files, err)
		}
	}
}

// TestAsKubeAPIServer checks that triune makes no files under the name of kube-apiserver, and
// demands what kube-apiserver demands.
func TestAsKubeAPIServer(t *testing.T) {
	working := t.TempDir()
	p := launchAs(t, "kube-apiserver", working, "", "--cert-dir="+t.TempDir())
	if code := p.wait(time.Minute); code != 1 {
		t.Errorf("exit status %d", code)
	}
	for _, want := range []string{"error: ", "--etcd-servers", "service-account-issuer"} {
		if !strings.Contains(p.log(), want) {
			t.Errorf("the error does not have %q:\n%s", want, p.log())
		}
	}
	if files, err := os.ReadDir(working); err != nil || len(files) != 0 {
		t.Errorf("it made %v, %v", files, err)
	}
}

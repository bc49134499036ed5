package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
)

// patience is how long a condition may take that depends only on the servers. It is far
// more than they need, for busy machines.
const patience = 30 * time.Second

func restConfig(t *testing.T, c *cluster.Cluster) *rest.Config {
	t.Helper()
	config, err := c.REST()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func clientset(t *testing.T, c *cluster.Cluster) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(restConfig(t, c))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// newNamespace creates a namespace named after the test, with the ServiceAccount that pods
// need, which a controller would create. It is deleted at the end of the test, and
// finalized only if the namespace controller runs.
func newNamespace(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	client := clientset(t, c)
	name := slug(t)
	create := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), create, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}}
	_, err := client.CoreV1().ServiceAccounts(name).Create(t.Context(), sa, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return name
}

// eventually waits until check returns nil. On a timeout it fails with the last error.
func eventually(t *testing.T, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	last := errors.New("never asked")
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("not within %v: %v", limit, last)
	}
}

// newKubectl returns the administrator's kubectl for a namespace; "" leaves the choice to
// kubectl.
func newKubectl(t *testing.T, c *cluster.Cluster, namespace string) cli.Command {
	t.Helper()
	return cli.Kubectl(t, c.Kubeconfig, namespace)
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certificateRequest returns a new PKCS #10 request, in base64 of its PEM.
func certificateRequest(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: t.Name()}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
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

// command is a client program with its environment.
type command struct {
	t    *testing.T
	path string
	args []string // precede the arguments of each call
	env  []string
	in   string
}

// output is the result of one call.
type output struct {
	stdout, stderr string
	code           int
}

// newKubectl returns the administrator's kubectl for a namespace; "" leaves the choice to
// kubectl. Its home and cache belong to the test.
func newKubectl(t *testing.T, c *cluster.Cluster, namespace string) command {
	t.Helper()
	path, err := tools.Path(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	k := command{t: t, path: path, env: []string{"KUBECONFIG=" + c.Kubeconfig, "HOME=" + t.TempDir()}}
	if namespace != "" {
		k.args = []string{"--namespace=" + namespace}
	}
	return k
}

func (k command) of(t *testing.T) command { k.t = t; return k }

func (k command) stdin(in string) command { k.in = in; return k }

func (k command) with(env ...string) command {
	k.env = append(append([]string{}, k.env...), env...)
	return k
}

// try runs the program and returns its result.
func (k command) try(args ...string) output {
	k.t.Helper()
	// Do not cancel it at the end of the test: it may be a cleanup.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.t.Context()), 3*time.Minute)
	defer cancel()
	cmd := k.cmd(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o := output{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		k.t.Fatalf("%s %s: %v\n%s%s", filepath.Base(k.path), strings.Join(args, " "), ctx.Err(), o.stdout, o.stderr)
	case errors.As(err, &exit):
		o.code = exit.ExitCode()
	default:
		k.t.Fatal(err)
	}
	return o
}

func (k command) cmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, k.path, append(append([]string{}, k.args...), args...)...)
	cmd.Env = append(os.Environ(), k.env...)
	cmd.Stdin = strings.NewReader(k.in)
	return cmd
}

// run returns standard output and fails the test unless the program succeeds.
func (k command) run(args ...string) string {
	k.t.Helper()
	o := k.try(args...)
	if o.code != 0 {
		k.t.Fatalf("%s %s: exit status %d\n%s%s", filepath.Base(k.path), strings.Join(args, " "), o.code, o.stdout, o.stderr)
	}
	return o.stdout
}

// says fails the test unless the program succeeds and prints all fragments.
func (k command) says(want []string, args ...string) {
	k.t.Helper()
	expectFragments(k.t, strings.Join(args, " "), k.run(args...), want)
}

// fails returns standard error and fails the test if the program succeeds.
func (k command) fails(want string, args ...string) string {
	k.t.Helper()
	o := k.try(args...)
	if o.code == 0 {
		k.t.Fatalf("%s %s: succeeded\n%s", filepath.Base(k.path), strings.Join(args, " "), o.stdout)
	}
	if !strings.Contains(o.stderr, want) {
		k.t.Fatalf("%s %s: got %q, want %q in it", filepath.Base(k.path), strings.Join(args, " "), o.stderr, want)
	}
	return o.stderr
}

func expectFragments(t *testing.T, what, got string, want []string) {
	t.Helper()
	var missing []string
	for _, w := range want {
		if !strings.Contains(got, w) {
			missing = append(missing, fmt.Sprintf("%q", w))
		}
	}
	if len(missing) > 0 {
		t.Errorf("%s: missing %s in\n%s", what, strings.Join(missing, ", "), got)
	}
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

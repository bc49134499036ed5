package command

import (
	"bytes"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/process/pki"
)

// execute runs a subcommand in this process.
func execute(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, stderr bytes.Buffer
	err = Run(t.Context(), newProgram().spec(), args, &out, &stderr)
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", stderr.String())
	}
	return out.String(), err
}

func TestSubcommandHelp(t *testing.T) {
	for name, want := range map[string][]string{
		"healthcheck": {"--url", "--server-ca-file", "Usage:\n  tier healthcheck [flags]"},
		"pki":         {"--dir", "--owner", "--kubeconfig"},
		"etcd-roles":  {"--etcd-servers", "--etcd-certfile", "--etcd-prefix"},
		"forward":     {"--listen", "--to"},
		"pki-secrets": {"--certificates", "--rotation", "--delete"},
		"reload":      {"--pid-file", "--file"},
		"inspect":     {"--kubeconfig", "--output"},
	} {
		out, err := execute(t, name, "--help")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range want {
			if !strings.Contains(out, want) {
				t.Errorf("the help of %s has no %q:\n%s", name, want, out)
			}
		}
		if strings.Contains(out, "--feature-gates") {
			t.Errorf("the help of %s has the flags of the server", name)
		}
	}
}

func TestSubcommandErrors(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no directory":     {[]string{"pki"}, `"dir"`},
		"an argument":      {[]string{"pki", "now"}, "now"},
		"a bad client":     {[]string{"pki", "--dir=x", "--client=nobody"}, "--client=nobody is not of the form"},
		"a bad kubeconfig": {[]string{"pki", "--dir=x", "--kubeconfig=admin"}, "--kubeconfig=admin is not of the form"},
		"a bad share":      {[]string{"pki", "--dir=x", "--share=core"}, "--share=core is not of the form"},
		"a bad owner":      {[]string{"pki", "--dir=x", "--owner=me"}, "--owner=me is not of the form"},
		"no list":          {[]string{"pki-secrets"}, `"certificates"`},
		"a missing list":   {[]string{"pki-secrets", "--certificates=gone"}, "--certificates=gone: read list of certificates: open gone: no such file"},
		"a bad rotation":   {[]string{"pki-secrets", "--certificates=x", "--rotation=now"}, "--rotation=now is not one of"},
		"no process":       {[]string{"reload", "--file=x"}, `"pid-file"`},
		"no interval":      {[]string{"reload", "--file=x", "--pid-file=x", "--interval=0s"}, "--interval=0s must be positive"},
		"a bad format":     {[]string{"inspect", "--output=xml"}, "--output=xml: must be text or json"},
		"no kubeconfig":    {[]string{"inspect", "--kubeconfig=gone"}, "--kubeconfig: stat gone: no such file"},
		"no backend":       {[]string{"forward"}, `"to"`},
		"a bad backend":    {[]string{"forward", "--to=core"}, "--to=core is not of the form"},
		"a bad address":    {[]string{"forward", "--to=core:1", "--listen=nowhere"}, "--listen=nowhere"},
		"a missing CA":     {[]string{"healthcheck", "--server-ca-file=gone"}, "--server-ca-file=gone: no such file"},
		"half a pair":      {[]string{"healthcheck", "--client-key-file=gone"}, "client-cert-file"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := execute(t, test.args...); err == nil || !strings.Contains(Message(err), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestHealthcheck(t *testing.T) {
	code := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	defer server.Close()
	if _, err := execute(t, "healthcheck", "--url="+server.URL); err != nil {
		t.Error(err)
	}
	code = http.StatusServiceUnavailable
	if _, err := execute(t, "healthcheck", "--url="+server.URL); err == nil {
		t.Error("an unhealthy server is healthy")
	}
}

func TestPKI(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	args := []string{
		"pki", "--dir=" + at("pki"), "--name=front,10.1.2.3",
		"--client=nats/core:triune-core", "--client=prometheus:prometheus:system:monitoring:watchers",
		"--kubeconfig=" + at("pki/admin.kubeconfig") + "=admin@https://127.0.0.1:6443",
		"--owner=" + strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid()), "--give=" + at("data/etcd"),
		"--install=" + at("programs/triune"),
		"--share=" + at("shares/core") + "=ca.crt,core.crt,core.key,nats/core.key",
		"--share=" + at("shares/admin") + "=admin.kubeconfig",
	}
	if _, err := execute(t, args...); err != nil {
		t.Fatal(err)
	}
	serving := load(t, at("pki/core"))
	for _, name := range []string{"front", "10.1.2.3", "core", "localhost"} {
		if err := serving.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	nats, ca := load(t, at("pki/nats/core")), load(t, at("pki/nats/ca"))
	if err := nats.CheckSignatureFrom(ca); err != nil || nats.Subject.String() != "CN=triune-core" {
		t.Errorf("%s, %v", nats.Subject, err)
	}
	monitor := load(t, at("pki/prometheus")).Subject
	if diff := cmp.Diff([]string{"system:monitoring", "watchers"}, slices.Sorted(slices.Values(monitor.Organization))); diff != "" || monitor.CommonName != "prometheus" {
		t.Errorf("%s: %s", monitor.CommonName, diff)
	}
	config, err := clientcmd.LoadFromFile(at("pki/admin.kubeconfig"))
	if err != nil || config.Clusters[pki.ContextName].Server != "https://127.0.0.1:6443" {
		t.Errorf("%v, %v", config, err)
	}
	if info, err := os.Stat(at("data/etcd")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	for file, mode := range map[string]os.FileMode{
		"core/ca.crt": 0o644, "core/core.crt": 0o644, "core/core.key": 0o600, "core/nats/core.key": 0o600, "admin/admin.kubeconfig": 0o600,
	} {
		if info, err := os.Stat(at("shares/" + file)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	installed, err := os.Stat(at("programs/triune"))
	if err != nil || installed.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", installed, err)
	}

	// The second run finds everything and changes nothing.
	if _, err := execute(t, args...); err != nil {
		t.Fatal(err)
	}
	if again := load(t, at("pki/core")); !again.Equal(serving) {
		t.Error("a second run issues certificates again")
	}
	if again, err := os.Stat(at("programs/triune")); err != nil || !os.SameFile(again, installed) {
		t.Errorf("a second run installs again: %v", err)
	}
}

func load(t *testing.T, base string) *x509.Certificate {
	t.Helper()
	pair, err := pki.Pair{CertFile: base + ".crt", KeyFile: base + ".key"}.Load()
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

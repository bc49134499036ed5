package standalone

import (
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/storage/etcdembed"
)

// TestUnusableFlags checks that the error is one line with the flag and its value, and that
// no files are made.
func TestUnusableFlags(t *testing.T) {
	tests := map[string]struct{ flag, want string }{
		"controller":      {"--controllers=namespace,gizmo", `--controllers: unknown controller "gizmo", known are [all-generic `},
		"NATS":            {"--nats-url=://", "--nats-url=://: "},
		"unknown flag":    {"--gizmo=1", "unknown flag: --gizmo"},
		"port":            {"--secure-port=70000", "--secure-port"},
		"admission":       {"--enable-admission-plugins=Gizmo", "enable-admission-plugins"},
		"authorization":   {"--authorization-mode=Gizmo", "authorization-mode"},
		"service range":   {"--service-cluster-ip-range=gizmo", "service-cluster-ip-range"},
		"feature gate":    {"--feature-gates=Gizmo=true", "Gizmo"},
		"no such CA file": {"--client-ca-file=/gizmo", "/gizmo"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			p := launch(t, dir, test.flag)
			if code := p.wait(time.Minute); code != 1 {
				t.Errorf("exit status %d", code)
			}
			var found []string
			for line := range strings.Lines(p.log()) {
				if strings.HasPrefix(line, "error: ") {
					found = append(found, line)
				}
			}
			if len(found) != 1 || !strings.Contains(found[0], test.want) {
				t.Errorf("want one line with %q, got:\n%s", test.want, p.log())
			}
			if _, err := os.Stat(filepath.Join(dir, "etcd")); !os.IsNotExist(err) {
				t.Errorf("etcd has begun: %v", err)
			}
		})
	}
}

func TestUnusableDataDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, file)
	if code := p.wait(time.Minute); code != 1 || !strings.Contains(p.log(), "error: --data-dir="+file) {
		t.Errorf("exit status %d:\n%s", code, p.log())
	}
}

// TestDataOfANewerVersion checks that triune refuses a database that a newer etcd has written.
func TestDataOfANewerVersion(t *testing.T) {
	dir := t.TempDir()
	first := launch(t, dir)
	first.ready(filepath.Join(dir, "admin.kubeconfig"))
	first.stop()
	database, err := bbolt.Open(filepath.Join(dir, "etcd", "member", "snap", "db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = database.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("cluster")).Put([]byte("clusterVersion"), []byte("3.99.0"))
	})
	if err := errors.Join(err, database.Close()); err != nil {
		t.Fatal(err)
	}
	p := launch(t, dir)
	if code := p.wait(time.Minute); code != 1 {
		t.Errorf("exit status %d", code)
	}
	line := p.log()[strings.LastIndex(strings.TrimSpace(p.log()), "\n")+1:]
	if !strings.HasPrefix(line, "error: ") || !strings.Contains(line, filepath.Join(dir, "etcd")) || !strings.Contains(line, "determined-cluster-version 3.99") {
		t.Errorf("got:\n%s", p.log())
	}
}

// TestNoFilesWithAllFlags checks that triune makes no files when it replaces kube-apiserver,
// with flags for all of them.
func TestNoFilesWithAllFlags(t *testing.T) {
	made, err := pki.Ensure(filepath.Join(t.TempDir(), "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	p := launch(t, dir,
		"--etcd-servers="+outsideEtcd(t),
		"--nats-url=nats://127.0.0.1:1",
		"--tls-cert-file="+made.Serving["aggregator"].CertFile, "--tls-private-key-file="+made.Serving["aggregator"].KeyFile,
		"--client-ca-file="+made.ClusterCA.CertFile,
		"--requestheader-client-ca-file="+made.FrontProxyCA.CertFile,
		"--proxy-client-cert-file="+made.FrontProxyClient.CertFile, "--proxy-client-key-file="+made.FrontProxyClient.KeyFile,
		"--service-account-issuer=https://issuer.example.com",
		"--service-account-key-file="+made.ServiceAccountPublicKey, "--service-account-signing-key-file="+made.ServiceAccountKey,
	)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := pki.WriteKubeconfig(kubeconfig, pki.Access{
		Server: "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)), CAFile: made.ClusterCA.CertFile, Client: made.Admin,
	}); err != nil {
		t.Fatal(err)
	}
	p.ready(kubeconfig)
	p.stop()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory: %v", err)
	}
	if left, err := os.ReadDir(p.tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind in the temporary directory: %v, %v", left, err)
	}
}

// outsideEtcd starts an etcd that ends with the test, and returns its URL.
func outsideEtcd(t *testing.T) string {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = filepath.Join(t.TempDir(), "etcd")
	config.LogLevel, config.LogOutputs = "fatal", []string{os.DevNull}
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 10, 100
	config.ListenClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenPeerUrls = nil
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	member, err := etcdembed.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	return "http://" + member.Addrs()[0].String()
}

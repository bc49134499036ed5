package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"triune.dev/shared/process/pki"
)

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(dir, "absent")
	made, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	one, other := made.Admin, made.ControllerManager
	for _, tc := range []struct{ args, want string }{
		{"--tls-cert-file=" + absent, "--tls-cert-file=" + absent + ": no such file or directory"},
		{"--client-ca-file=" + broken, "--client-ca-file=" + broken + ": data does not contain any valid"},
		{"--etcd-cafile=" + broken, "--etcd-cafile=" + broken + ": data does not contain any valid"},
		{"--etcd-keyfile=" + absent, "--etcd-keyfile=" + absent + ": no such file or directory"},
		{"--tls-cert-file=" + one.CertFile + " --tls-private-key-file=" + broken, "--tls-cert-file=" + one.CertFile + " --tls-private-key-file=" + broken + ": tls: failed to find any PEM data"},
		{"--tls-cert-file=" + one.CertFile + " --tls-private-key-file=" + other.KeyFile, "--tls-private-key-file=" + other.KeyFile + ": tls: private key does not match public key"},
		{"--service-account-key-file=" + broken + " --service-account-key-file=" + absent, "--service-account-key-file=" + absent + ": no such file"},
	} {
		if err := checkFiles(givenFlags(t, strings.Fields(tc.args)...)); err == nil || !strings.Contains(Message(err), tc.want) {
			t.Errorf("%s: %v, want %q", tc.args, err, tc.want)
		}
	}
	for _, args := range [][]string{{"--client-ca-file="}, {"--tls-cert-file=" + one.CertFile, "--tls-private-key-file=" + one.KeyFile}} {
		if err := checkFiles(givenFlags(t, args...)); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

package etcdstore

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"triune.dev/shared/testing/etcdtest"
)

// TestRenewedClientCertificateIsShown checks that a client that connects again presents the
// certificate that is in its files by then. The two certificates name different users of
// etcd.
func TestRenewedClientCertificateIsShown(t *testing.T) {
	server := etcdtest.StartSecure(t, "root", "before", "after")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	root := server.DialAs(t, "root")
	for _, user := range []string{"root", "before", "after"} {
		_, roleErr := root.RoleAdd(ctx, user)
		_, grantErr := root.RoleGrantPermission(ctx, user, "/"+user, "", clientv3.PermissionType(clientv3.PermReadWrite))
		_, userErr := root.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
		_, err := root.UserGrantRole(ctx, user, user)
		for _, err := range []error{roleErr, grantErr, userErr, err} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := root.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	config := storagebackend.TransportConfig{ServerList: []string{server.URL()}, CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	issue := func(user string) {
		t.Helper()
		ca, pair := server.Files(user)
		config.TrustedCAFile = ca
		for from, to := range map[string]string{pair.CertFile: config.CertFile, pair.KeyFile: config.KeyFile} {
			data, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	issue("before")
	client, err := Dial(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if _, err := client.Put(ctx, "/before", "x"); err != nil {
		t.Fatal(err)
	}
	issue("after")
	if _, err := client.Put(ctx, "/before", "x"); err != nil {
		t.Fatalf("over the existing connection: %v", err)
	}
	server.Restart(t)
	for {
		_, err := client.Put(ctx, "/after", "x")
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("over a new connection: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

package command

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"triune.dev/shared/testing/etcdtest"
)

func TestEtcdRoles(t *testing.T) {
	server := etcdtest.StartSecure(t, "root", "triune-core")
	ca, root := server.Files("root")
	args := []string{"etcd-roles", "--etcd-cafile=" + ca, "--etcd-certfile=" + root.CertFile, "--etcd-keyfile=" + root.KeyFile, "--etcd-servers=" + server.URL()}
	for range 2 {
		if _, err := execute(t, args...); err != nil {
			t.Fatal(err)
		}
	}
	core := server.DialAs(t, "triune-core")
	if _, err := core.Put(t.Context(), "/registry/pods/ns/a", "x"); err != nil {
		t.Errorf("core writes a pod: %v", err)
	}
	if _, err := core.Put(t.Context(), "/registry/example.com/widgets/a", "x"); err == nil {
		t.Error("core writes a custom resource")
	}

	_, other := server.Files("triune-core")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing":        {[]string{"etcd-roles"}, `"etcd-certfile", "etcd-keyfile", "etcd-servers"`},
		"no such file":   {append(slices.Clip(args), "--etcd-cafile="+filepath.Join(t.TempDir(), "gone")), "no such file"},
		"another user":   {append(slices.Clip(args), "--etcd-certfile="+other.CertFile, "--etcd-keyfile="+other.KeyFile), `is the certificate of "triune-core", not of etcd's user root`},
		"foreign users":  {append(slices.Clip(args), "--event-log-cluster=other"), "has users or roles of somebody else"},
		"nobody answers": {append(slices.Clip(args[:len(args)-1]), "--etcd-servers=https://127.0.0.1:1", "--timeout=2s"), "--etcd-servers: dial etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := execute(t, test.args...); err == nil || !strings.Contains(Message(err), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

package deploy

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/deploy/engine"
)

// TestComposeHALosesAMember checks that an installation with three members of etcd and NATS
// survives the loss of one of each.
func TestComposeHALosesAMember(t *testing.T) {
	full(t)
	file := filepath.Join("deploy", "compose", "ha.env")
	p, client, kubeconfig := composeUp(t, nil, nil, "--env-file="+file)
	ctx := t.Context()
	fromStream(t, p, kubeconfig)
	write := func(name string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) { // the answer to an attempt was lost
				return nil
			}
			return err
		})
	}
	write("before")
	for _, service := range []string{"etcd-0", "nats-0"} {
		ids, err := p.Containers(ctx, service)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := engine.Docker(ctx, "kill", ids[0]); err != nil {
			t.Fatal(err)
		}
		write("without-" + service)
	}
	healthy(t, p, tierServices...)
	fromStream(t, p, kubeconfig)
	// A replica can also start without them.
	ids, err := p.Containers(ctx, "core")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Docker(ctx, "restart", ids[0]); err != nil {
		t.Fatal(err)
	}
	healthy(t, p, "core")
	replaceMember(t, p, "--env-file="+file)
	if ids, err = p.Containers(ctx, "nats-0"); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Docker(ctx, "start", ids[0]); err != nil {
		t.Fatal(err)
	}
	healthy(t, p, "nats-0")
	write("after")
	list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	if err != nil || len(list.Items) != 4 {
		t.Errorf("%d objects, want 4: %v", len(list.Items), err)
	}
	// Stop the tiers while etcd runs, and then the members of etcd one by one.
	services := append([]string{"etcd-0", "etcd-1", "etcd-2", "nats-0", "nats-1", "nats-2", "api"}, tierServices...)
	t.Logf("stopped within %v", stop(t, p, services, "--env-file="+file).Round(100*time.Millisecond))
}

// replaceMember deletes the volume of etcd-0 and replaces the member as deploy/README.md
// describes. env names the installation's file of variables.
func replaceMember(t *testing.T, p *engine.Project, env string) {
	t.Helper()
	ctx := t.Context()
	lose := func() {
		t.Helper()
		for _, service := range []string{"etcd-0", "pki"} { // both have the volume
			ids, err := p.Containers(ctx, service)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := engine.Docker(ctx, append([]string{"rm", "--force"}, ids...)...); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := engine.Docker(ctx, "volume", "rm", p.Volume("etcd-0")); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	if _, err := p.Compose(ctx, env, "up", "--detach", "--no-build", "etcd-0"); err != nil {
		t.Fatal(err)
	}
	ids, err := p.Containers(ctx, "etcd-0")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		logs, err := engine.Logs(ctx, ids[0])
		if err == nil && !strings.Contains(logs, "has already been bootstrapped") {
			err = fmt.Errorf("etcd says: %s", logs)
		}
		return err
	})

	// It must not run before it is a member, or it would form a cluster of its own.
	lose()
	if _, err := p.Compose(ctx, env, "up", "--no-build", "pki"); err != nil {
		t.Fatal(err)
	}
	client := etcdClient(t, p, "etcd-1")
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // or it asks for ever
	defer cancel()
	members, err := client.MemberList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range members.Members {
		if member.Name == "etcd-0" {
			if _, err := client.MemberRemove(ctx, member.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := client.MemberAdd(ctx, []string{"https://etcd-0:2380"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.With("TRIUNE_ETCD_CLUSTER_STATE=existing").Compose(ctx, env, "up", "--detach", "--no-build", "--no-deps", "etcd-0"); err != nil {
		t.Fatal(err)
	}
	healthy(t, p, "etcd-0")
}

// etcdClient returns a client of one member, with the certificate of root that the members
// have for etcdctl.
func etcdClient(t *testing.T, p *engine.Project, service string) *clientv3.Client {
	t.Helper()
	ids, err := p.Containers(t.Context(), service)
	if err != nil || len(ids) == 0 {
		t.Fatalf("containers of %s: %v, %v", service, ids, err)
	}
	address, err := p.Address(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := engine.Docker(t.Context(), "cp", ids[0]+":/pki/etcd", dir); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, "etcd", name) }
	pair, err := pki.Pair{CertFile: at("root.crt"), KeyFile: at("root.key")}.Load()
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.LoadPool(at("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	// This machine cannot resolve its name, and its certificate contains no address.
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(address, "2379"))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"https://" + service + ":2379"},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
		TLS:         &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

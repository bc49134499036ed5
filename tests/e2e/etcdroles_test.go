package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"triune.dev/tests/cluster"
)

// TestEtcdRoles checks that each tier works with a user of etcd that has access only to
// that tier's keys, also when the tier has to watch etcd itself, and what a stolen
// certificate of such a user allows.
func TestEtcdRoles(t *testing.T) {
	needs(t)
	full(t)
	c := cluster.Run(t, cluster.Config{Topology: cluster.Tiers, EtcdRoles: true})
	k := newKubectl(t, c, "default")
	k.Stdin(keeps).Run("apply", "-f", "-")
	k.Run("wait", "--for=condition=Established", "crd/keeps.namespace.triune.dev", "--timeout=60s")
	client := dynamic.NewForConfigOrDie(restConfig(t, c))

	resources := []rolesResource{
		{"v1", "Secret", client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace("default"), nil},
		{"namespace.triune.dev/v1", "Keep", client.Resource(schema.GroupVersionResource{Group: "namespace.triune.dev", Version: "v1", Resource: "keeps"}).Namespace("default"), nil},
		{"apiregistration.k8s.io/v1", "APIService", client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}), func(name string) map[string]any {
			group := name + ".roles.triune.dev"
			return map[string]any{
				"metadata": map[string]any{"name": "v1." + group},
				"spec":     map[string]any{"group": group, "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100)},
			}
		}},
	}
	watches := map[string]watch.Interface{}
	for _, r := range resources {
		w, err := r.client.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		watches[r.kind] = w
	}
	each := func(name string) {
		t.Helper()
		for _, r := range resources {
			created := r.create(t, name)
			awaitAdded(t, watches[r.kind], created)
		}
	}
	each("first")
	c.Kill(cluster.NATS, 0)
	each("without-nats")
	for _, tier := range c.ServingTiers() {
		if err := c.Restart(t.Context(), tier, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range resources {
		w, err := r.client.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		watches[r.kind] = w
	}
	each("restarted")
	if err := c.StartReplica(t.Context(), cluster.NATS, 0); err != nil {
		t.Fatal(err)
	}
	each("with-nats")
	if err := c.EnsureEtcdRoles(t.Context(), c.EtcdURL); err != nil {
		t.Errorf("a second time: %v", err)
	}
	each("second-time")

	for _, line := range strings.Split(c.Logs(1<<20), "\n") {
		if lower := strings.ToLower(line); strings.Contains(lower, "permission denied") || strings.Contains(lower, "permissiondenied") {
			t.Errorf("a tier lacks a permission: %s", line)
		}
	}
	for _, tier := range c.ServingTiers() {
		t.Run("a stolen key of "+string(tier), func(t *testing.T) { stolenEtcdKey(t, c, tier) })
	}
}

type rolesResource struct {
	version, kind string
	client        dynamic.ResourceInterface
	content       func(name string) map[string]any
}

func (r rolesResource) create(t *testing.T, name string) string {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "roles-" + name}}}
	if r.content != nil {
		o.Object = r.content(name)
	}
	o.SetAPIVersion(r.version)
	o.SetKind(r.kind)
	var created *unstructured.Unstructured
	eventually(t, patience, func(ctx context.Context) (err error) {
		created, err = r.client.Create(ctx, o, metav1.CreateOptions{})
		return err
	})
	return created.GetName()
}

// awaitAdded waits for the event of an object.
func awaitAdded(t *testing.T, w watch.Interface, name string) {
	t.Helper()
	limit := time.After(3 * time.Minute)
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatalf("the watch ended before %s", name)
			}
			if o, is := e.Object.(*unstructured.Unstructured); is && e.Type == watch.Added && o.GetName() == name {
				return
			}
		case <-limit:
			t.Fatalf("no event of %s", name)
		}
	}
}

// stolenEtcdKey checks what the certificate of a tier does not allow.
func stolenEtcdKey(t *testing.T, c *cluster.Cluster, tier cluster.Tier) {
	root, err := c.EtcdAs("root")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	thief, err := c.EtcdAs(string(tier))
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	all, err := root.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	readable, written := 0, 0
	for _, item := range all.Kvs {
		key := string(item.Key)
		owner := ownerOf(key)
		_, err := thief.Get(t.Context(), key, clientv3.WithSerializable())
		if allowed := owner == tier || owner == "" || tier == cluster.Core && owner != "root"; allowed != (err == nil) || err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("read %s: %v", key, err)
		}
		if err == nil {
			readable++
		}
		// Permissions of a transaction are checked before its conditions.
		_, err = thief.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision(key), "=", -1)).Then(clientv3.OpPut(key, "forged"), clientv3.OpGet(key)).Commit()
		if allowed := owner == tier || tier == cluster.Core && strings.HasPrefix(key, "/triune/"); allowed != (err == nil) || err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("write %s: %v", key, err)
		}
		if err == nil {
			written++
		}
	}
	t.Logf("%s may read %d and write %d of %d keys", tier, readable, written, len(all.Kvs))
	if readable == 0 || written == 0 || tier != cluster.Core && readable == len(all.Kvs) {
		t.Errorf("reads %d and writes %d of %d keys", readable, written, len(all.Kvs))
	}
	if _, err := thief.Get(t.Context(), "/registry/secrets/", clientv3.WithPrefix()); (err == nil) != (tier == cluster.Core) {
		t.Errorf("all Secrets: %v", err)
	}
	if _, err := thief.UserList(t.Context()); err == nil {
		t.Error("it may list etcd's users")
	}
}

// ownerOf returns the tier that owns a key, "" if every tier may read it.
func ownerOf(key string) cluster.Tier {
	first, _, _ := strings.Cut(strings.TrimPrefix(key, "/registry/"), "/")
	switch {
	case strings.HasPrefix(key, "/triune/eventlog/"), key == "compact_rev_key":
		return ""
	case !strings.HasPrefix(key, "/registry/"):
		return "root"
	case strings.HasPrefix(key, "/registry/apiregistration.k8s.io/apiservices/"):
		return cluster.Aggregator
	case strings.Contains(first, "."):
		return cluster.Extensions
	}
	return cluster.Core
}

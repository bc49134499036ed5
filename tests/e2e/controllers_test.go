package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
)

// goal is how long controllers may take to reach their goal state, including their
// back-off.
const goal = 90 * time.Second

// TestControllers lets the real controllers, the real scheduler and fake nodes bring
// workloads to their goal state and remove them again.
func TestControllers(t *testing.T) {
	full(t)
	c := server(t)
	startControlPlane(t, c)
	nodes := createNodes(t, c, 2)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)

	// Without these nothing below can work, and each would wait in vain.
	k.Run("wait", "--for=create", "configmap/kube-root-ca.crt", "serviceaccount/default", "--timeout=60s")
	k.Run("wait", "--for=condition=Ready", "node", "-l", "suite=controllers", "--timeout=60s")

	t.Run("deployment", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin(web).Run("apply", "-f", "-")
		k.Run("rollout", "status", "deployment/web", "--timeout=90s")
		k.Run("set", "image", "deployment/web", "main=registry.example/web:2")
		k.Run("rollout", "status", "deployment/web", "--timeout=90s")
		expectImages(t, k, "app=web", "registry.example/web:2", 2)
		k.Run("scale", "deployment/web", "--replicas=4")
		k.Run("rollout", "status", "deployment/web", "--timeout=90s")
		expectImages(t, k, "app=web", "registry.example/web:2", 4)
		k.Says([]string{"REVISION", "1 ", "2 "}, "rollout", "history", "deployment/web")
		k.Run("rollout", "undo", "deployment/web")
		k.Run("rollout", "status", "deployment/web", "--timeout=90s")
		expectImages(t, k, "app=web", "registry.example/web:1", 4)
		k.Says([]string{"4/4"}, "get", "deployment/web")
	})
	t.Run("service", func(t *testing.T) {
		k := k.Of(t)
		k.Run("expose", "deployment/web", "--port=80", "--target-port=8080")
		eventually(t, goal, func(ctx context.Context) error {
			slices, err := clientset(t, c).DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
			if err != nil {
				return err
			}
			ready := 0
			for _, s := range slices.Items {
				for _, e := range s.Endpoints {
					if e.Conditions.Ready != nil && *e.Conditions.Ready {
						ready++
					}
				}
			}
			if ready != 4 {
				return fmt.Errorf("%d ready endpoints, want 4", ready)
			}
			return nil
		})
		k.Says([]string{"Endpoints:"}, "describe", "service/web")
	})
	t.Run("statefulset", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin(workload("apps/v1", "StatefulSet", "db", "  replicas: 2\n  serviceName: db\n")).Run("apply", "-f", "-")
		k.Run("rollout", "status", "statefulset/db", "--timeout=90s")
		if got := k.Run("get", "pods", "-l", "app=db", "-o", "name"); got != "pod/db-0\npod/db-1\n" {
			t.Errorf("pods are %q", got)
		}
		k.Run("set", "image", "statefulset/db", "main=registry.example/db:2")
		k.Run("rollout", "status", "statefulset/db", "--timeout=90s")
		expectImages(t, k, "app=db", "registry.example/db:2", 2)
		k.Run("rollout", "undo", "statefulset/db")
		k.Run("rollout", "status", "statefulset/db", "--timeout=90s")
		expectImages(t, k, "app=db", "registry.example/db:1", 2)
		k.Run("scale", "statefulset/db", "--replicas=1")
		k.Run("wait", "--for=delete", "pod/db-1", "--timeout=60s")
	})
	t.Run("daemonset", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin(workload("apps/v1", "DaemonSet", "agent", "")).Run("apply", "-f", "-")
		k.Run("rollout", "status", "daemonset/agent", "--timeout=90s")
		on := strings.Fields(k.Run("get", "pods", "-l", "app=agent", "-o", "jsonpath={.items[*].spec.nodeName}"))
		if len(on) != len(nodes) {
			t.Errorf("pods on %v, want one on each of %v", on, nodes)
		}
		k.Run("set", "image", "daemonset/agent", "main=registry.example/agent:2")
		k.Run("rollout", "status", "daemonset/agent", "--timeout=90s")
		k.Run("rollout", "undo", "daemonset/agent")
		k.Run("rollout", "status", "daemonset/agent", "--timeout=90s")
		expectImages(t, k, "app=agent", "registry.example/agent:1", len(nodes))
	})
	t.Run("job", func(t *testing.T) {
		k := k.Of(t)
		k.Run("create", "job", "once", "--image=registry.example/job:1")
		k.Run("wait", "--for=condition=Complete", "job/once", "--timeout=90s")
	})
	t.Run("cronjob", func(t *testing.T) {
		k := k.Of(t)
		k.Run("create", "cronjob", "tick", "--image=registry.example/job:1", "--schedule=* * * * *")
		// Not to wait for the minute: what the controller does then, at once.
		k.Run("create", "job", "tick-now", "--from=cronjob/tick")
		k.Run("wait", "--for=condition=Complete", "job/tick-now", "--timeout=90s")
		eventually(t, 2*goal, func(context.Context) error {
			if when := k.Run("get", "cronjob/tick", "-o", "jsonpath={.status.lastSuccessfulTime}"); when == "" {
				return fmt.Errorf("it has not run: %s", k.Run("get", "cronjob/tick", "-o", "jsonpath={.status}"))
			}
			return nil
		})
		k.Run("delete", "cronjob/tick", "--cascade=foreground", "--timeout=60s")
	})
	t.Run("garbage is collected", func(t *testing.T) {
		k := k.Of(t)
		k.Run("delete", "deployment/web", "--cascade=foreground", "--timeout=60s")
		if got := k.Run("get", "pods,replicasets", "-l", "app=web", "-o", "name"); got != "" {
			t.Errorf("left behind: %s", got)
		}
		k.Run("delete", "statefulset/db", "--cascade=orphan")
		if got := k.Run("get", "pod/db-0", "-o", "jsonpath={.metadata.ownerReferences}"); got != "" {
			eventually(t, goal, func(context.Context) error {
				if got := k.Run("get", "pod/db-0", "-o", "jsonpath={.metadata.ownerReferences}"); got != "" {
					return fmt.Errorf("an orphan has owners: %s", got)
				}
				return nil
			})
		}
	})
	t.Run("aggregated roles", func(t *testing.T) {
		k := k.Of(t)
		eventually(t, goal, func(context.Context) error {
			if out := k.Run("describe", "clusterrole/edit"); !strings.Contains(out, "configmaps") {
				return fmt.Errorf("cluster role edit: %s", out)
			}
			return nil
		})
	})
	t.Run("a certificate is signed", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin("apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: controllers}\nspec:\n  signerName: kubernetes.io/kube-apiserver-client\n  usages: [client auth]\n  request: "+certificateRequest(t)+"\n").Run("create", "-f", "-")
		k.Run("certificate", "approve", "controllers")
		eventually(t, goal, func(context.Context) error {
			if k.Run("get", "csr/controllers", "-o", "jsonpath={.status.certificate}") == "" {
				return fmt.Errorf("no certificate: %s", k.Run("get", "csr/controllers", "-o", "jsonpath={.status}"))
			}
			return nil
		})
	})
	t.Run("a namespace goes with everything in it", func(t *testing.T) {
		k := k.Of(t)
		k.Run("delete", "namespace", ns, "--timeout=120s")
		k.Args = nil
		k.Fails("NotFound", "get", "namespace", ns)
		if got := k.Run("get", "pods,services,configmaps,secrets,serviceaccounts,endpointslices", "-A", "--field-selector=metadata.namespace="+ns, "-o", "name"); got != "" {
			t.Errorf("left behind: %s", got)
		}
	})
}

// startControlPlane starts what makes a cluster of an API server. All of it ends
// with the test.
func startControlPlane(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for name, start := range map[string]func(context.Context) (*cluster.Process, error){
		"kube-controller-manager": c.StartControllerManager,
		"kube-scheduler":          c.StartScheduler,
		"kwok":                    c.StartKwok,
	} {
		p, err := start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Kill()
			if t.Failed() {
				t.Logf("%s:\n%s", name, p.Log(4<<10))
			}
		})
	}
}

func createNodes(t *testing.T, c *cluster.Cluster, n int) []string {
	t.Helper()
	client := clientset(t, c).CoreV1().Nodes()
	var names []string
	for i := range n {
		name := fmt.Sprintf("%s-%d", slug(t), i)
		names = append(names, name)
		capacity := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("110")}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"suite": "controllers", corev1.LabelHostname: name}},
			Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
		}
		if _, err := client.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	return names
}

// workload is a manifest of one of the kinds that have a pod template.
func workload(apiVersion, kind, name, spec string) string {
	return fmt.Sprintf(`apiVersion: %s
kind: %s
metadata: {name: %s}
spec:
%s  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec:
      containers: [{name: main, image: "registry.example/%s:1"}]
`, apiVersion, kind, name, spec, name, name, name)
}

// expectImages waits until all pods of a selector that stay are n running ones
// with the image.
func expectImages(t *testing.T, k cli.Command, selector, image string, n int) {
	t.Helper()
	eventually(t, goal, func(context.Context) error {
		out := k.Run("get", "pods", "-l", selector, "-o", `jsonpath={range .items[*]}{.spec.containers[0].image} {.status.phase} {.metadata.deletionTimestamp}{"\n"}{end}`)
		running := 0
		for line := range strings.Lines(out) {
			fields := strings.Fields(line)
			if len(fields) == 3 {
				continue // it is going
			}
			if len(fields) != 2 || fields[0] != image || fields[1] != "Running" {
				return fmt.Errorf("pods of %s: %s", selector, out)
			}
			running++
		}
		if running != n {
			return fmt.Errorf("%d pods of %s run, want %d: %s", running, selector, n, out)
		}
		return nil
	})
}

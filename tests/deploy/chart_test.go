package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// full skips a test with -short.
func full(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not part of the fast half (-short)")
	}
}

// path returns the path of a file of the checkout.
func path(t *testing.T, elements ...string) string {
	t.Helper()
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{root}, elements...)...)
}

// program is a tool with its first arguments.
type program struct {
	name  string
	args  []string
	env   []string
	stdin string
}

// run executes the program, and returns its output even with an error.
func (p program) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	binary, err := tools.Path(t.Context(), p.name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, append(slices.Clone(p.args), args...)...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdin = strings.NewReader(p.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", p.name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// must is run for a program that must succeed.
func (p program) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// helm returns Helm with its own directories, so that it does not use those of the user.
func helm(t *testing.T, args ...string) program {
	dir := t.TempDir()
	return program{name: "helm", args: args, env: []string{"HELM_CACHE_HOME=" + dir, "HELM_CONFIG_HOME=" + dir, "HELM_DATA_HOME=" + dir}}
}

func chart(t *testing.T) string { return path(t, "deploy", "helm", "triune") }

// valueSets returns the files of ci/.
func valueSets(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart(t), "ci", "*-values.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("value sets: %v, %v", files, err)
	}
	return files
}

func TestChartLint(t *testing.T) {
	for _, values := range valueSets(t) {
		t.Run(filepath.Base(values), func(t *testing.T) {
			if out := helm(t).must(t, "lint", "--strict", chart(t), "--values", values); strings.Contains(out, "[WARNING]") {
				t.Error(out)
			}
		})
	}
}

// TestChartRefusesBadValues checks that Helm's error names the value and what it requires.
func TestChartRefusesBadValues(t *testing.T) {
	for set, want := range map[string]string{
		"core.replicas=3":                          "additional properties 'replicas' not allowed",
		"etcd.replicaCount=2":                      "'/etcd/replicaCount': value must be one of 1, 3, 5",
		"tls.mode=none":                            "'/tls/mode'",
		"core.image.digest=latest":                 "'/core/image/digest'",
		"aggregator.extraArgs={v=2}":               "'/aggregator/extraArgs/0'",
		"api.service.port=0":                       "'/api/service/port'",
		"eventLog.maxAge=often":                    "'/eventLog/maxAge'",
		"etcd.enabled=false":                       "etcd.enabled=false needs etcd.external.endpoints",
		"etcd.external.endpoints={https://e:2379}": "etcd.external.endpoints needs etcd.enabled=false",
		"nats.external.urls={tls://n:4222}":        "nats.external.urls needs nats.enabled=false",
		"nats.enabled=false":                       "eventLog.enabled=true needs nats.enabled=true",
		"eventLog.replicas=5":                      "eventLog.replicas=5 is more than nats.replicaCount=3",
		"tls.mode=existingSecret":                  "tls.mode=existingSecret needs tls.existingSecretPrefix",
		"tls.existingSecretPrefix=a":               "tls.existingSecretPrefix needs tls.mode=existingSecret",
		"core.autoscaling.enabled=true,core.autoscaling.minReplicas=20":                                            "core.autoscaling.minReplicas=20 is more than maxReplicas=10",
		"core.autoscaling.enabled=true,core.autoscaling.targetWatches=0,core.autoscaling.targetInflightRequests=0": "core.autoscaling has no target",
	} {
		t.Run(set, func(t *testing.T) {
			if _, err := helm(t).run(t, "template", "t", chart(t), "--set", set); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		})
	}
}

// foreign lists the kinds of other projects that some values make the chart render. Their
// schemas are not checked, only that they are objects.
var foreign = []struct{ group, version, kind, plural string }{
	{"cert-manager.io", "v1", "Certificate", "certificates"},
	{"cert-manager.io", "v1", "Issuer", "issuers"},
	{"monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"},
	{"monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"},
}

func foreignDefinitions() string {
	var b strings.Builder
	for _, f := range foreign {
		fmt.Fprintf(&b, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[4]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[3]s, plural: %[4]s, singular: %[5]s}
  versions:
    - {name: %[2]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, f.group, f.version, f.kind, f.plural, strings.ToLower(f.kind))
	}
	return b.String()
}

// TestChartIsAcceptedByServers checks that kube-apiserver and Triune accept everything that
// the chart renders, with strict validation and without warnings.
func TestChartIsAcceptedByServers(t *testing.T) {
	full(t)
	for _, topology := range []cluster.Topology{cluster.KubeAPIServer, cluster.Triune} {
		t.Run(string(topology), func(t *testing.T) {
			c := cluster.Run(t, cluster.Config{Topology: topology})
			kubectl := program{name: "kubectl", args: []string{"--kubeconfig", c.Kubeconfig}}
			definitions := kubectl
			definitions.stdin = foreignDefinitions()
			definitions.must(t, "apply", "--filename=-")
			kubectl.must(t, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinition", "--all")
			for _, values := range valueSets(t) {
				t.Run(filepath.Base(values), func(t *testing.T) {
					apply := kubectl
					apply.stdin = helm(t).must(t, "template", "t", chart(t), "--namespace=default", "--values", values)
					// Discovery includes new CRDs a moment later.
					eventually(t, time.Minute, func() error {
						out, err := apply.run(t, "apply", "--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "--filename=-")
						if err != nil {
							return err
						}
						objects := strings.Count("\n"+apply.stdin, "\nkind: ")
						if got := strings.Count(out, "serverside-applied"); got != objects {
							return fmt.Errorf("%d of %d objects are accepted:\n%s", got, objects, out)
						}
						return nil
					})
				})
			}
		})
	}
}

// eventually retries check until it succeeds; its last error fails the test.
func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	deadline, tick := time.After(limit), time.NewTicker(200*time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %v", limit, err)
		}
	}
}

// TestChartLifecycle takes the chart through install, test, upgrade and uninstall on a
// cluster of Triune, with the real controllers and simulated nodes.
func TestChartLifecycle(t *testing.T) {
	full(t)
	c := cluster.Run(t, cluster.Config{Topology: cluster.Triune})
	for _, start := range []func(context.Context) (*cluster.Process, error){c.StartControllerManager, c.StartScheduler, c.StartKwokBesideJobs} {
		p, err := start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
	}
	createNodes(t, c, 3)
	createVolumes(t, c, 6)
	const namespace = "control"
	runJobs(t, host{c, clientOf(t, c), namespace})
	kubectl := program{name: "kubectl", args: []string{"--kubeconfig", c.Kubeconfig, "--namespace=" + namespace}}
	kubectl.must(t, "create", "namespace", namespace)
	kubectl.must(t, "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
	before := inventory(t, kubectl)
	release := helm(t, "--kubeconfig", c.Kubeconfig, "--namespace="+namespace)
	// The default values, except that etcd's volumes and the keys are deleted with the
	// release.
	with := []string{"--values", filepath.Join(chart(t), "ci", "default-values.yaml"), "--set", "etcd.persistence.whenDeleted=Delete", "--wait", "--timeout=240s"}
	install := func(args ...string) string { t.Helper(); return release.must(t, append(args, with...)...) }

	// The previous version, as packaged by `helm package`.
	out := install("install", "cp", filepath.Join("testdata", "triune-0.1.0.tgz"))
	if !strings.Contains(out, "STATUS: deployed") || !strings.Contains(out, "https://cp-triune.control.svc.cluster.local:443") {
		t.Errorf("install says\n%s", out)
	}
	for workload, want := range map[string]string{"deployment/cp-triune-aggregator": "2", "deployment/cp-triune-core": "2", "deployment/cp-triune-extensions": "2", "statefulset/cp-triune-etcd": "3", "statefulset/cp-triune-nats": "3"} {
		if got := kubectl.must(t, "get", workload, "-o", "jsonpath={.status.readyReplicas}"); got != want {
			t.Errorf("%s has %q ready replicas, want %s", workload, got, want)
		}
	}
	secrets := []string{"get", "secrets", "-l", "app.kubernetes.io/component=pki", "-o", `jsonpath={range .items[*]}{.metadata.name} {.data}{"\n"}{end}`}
	volumes := []string{"get", "persistentvolumeclaims", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`}
	certificates, claims := kubectl.must(t, secrets...), kubectl.must(t, volumes...)
	if n := strings.Count(claims, "\n"); n != 6 {
		t.Errorf("%d claims of volumes, want 6:\n%s", n, claims)
	}
	with = append(with, "--set", "tls.selfSigned.whenDeleted=Delete")
	install("upgrade", "cp", chart(t))
	// Authorities and the token key remain. Certificates that Helm had made for ten years
	// are issued again; checkCertificates checks them.
	upgraded, kept := kubectl.must(t, secrets...), 0
	for secret := range strings.Lines(certificates) {
		name, _, _ := strings.Cut(secret, " ")
		if !strings.HasSuffix(name, "-ca") && name != "cp-triune-service-account" {
			continue
		}
		if kept++; !strings.Contains(upgraded, secret) {
			t.Errorf("the upgrade from the previous version has made another %s", name)
		}
	}
	if kept != 5 || strings.Contains(upgraded, "cp-triune-tokens") || !strings.Contains(upgraded, "cp-triune-admin ") {
		t.Errorf("after the upgrade %d Secrets of before are there, and all of them are\n%s", kept, upgraded)
	}
	if certificates = upgraded; kubectl.must(t, volumes...) != claims {
		t.Error("the upgrade from the previous version has made other volumes")
	}
	checkCertificates(t, kubectl, namespace)
	pods := podsOf(t, kubectl)

	release.must(t, "test", "cp", "--timeout=90s")

	install("upgrade", "cp", chart(t), "--set", "core.extraArgs={--v=3},core.replicaCount=3")
	if kubectl.must(t, secrets...) != certificates || kubectl.must(t, volumes...) != claims {
		t.Error("the upgrade has made other certificates, keys or volumes")
	}
	// Pods of the old revision may still be terminating.
	eventually(t, time.Minute, func() error {
		now := podsOf(t, kubectl)
		for component, names := range pods {
			if same := slices.Equal(names, now[component]); same == (component == "core") {
				return fmt.Errorf("pods of %s were %v and are %v", component, names, now[component])
			}
		}
		if len(now["core"]) != 3 {
			return fmt.Errorf("pods of core are %v, want 3", now["core"])
		}
		return nil
	})

	release.must(t, "uninstall", "cp", "--wait", "--timeout=120s")
	eventually(t, 2*time.Minute, func() error {
		if after := inventory(t, kubectl); after != before {
			return fmt.Errorf("uninstall leaves something behind; there is now\n%s\nand was\n%s", after, before)
		}
		return nil
	})
}

// podsOf lists the pods of each component that are not terminating.
func podsOf(t *testing.T, kubectl program) map[string][]string {
	t.Helper()
	out := kubectl.must(t, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.labels.app\.kubernetes\.io/component} {.metadata.name} {.metadata.deletionTimestamp}{"\n"}{end}`)
	all := map[string][]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 && f[0] != "test" && f[0] != "pki" {
			all[f[0]] = append(all[f[0]], f[1])
		}
	}
	for _, names := range all {
		slices.Sort(names)
	}
	return all
}

// inventory lists everything in a namespace except for events, and the cluster-scoped
// objects that a chart could create.
func inventory(t *testing.T, kubectl program) string {
	t.Helper()
	kinds := strings.Fields(kubectl.must(t, "api-resources", "--namespaced", "--verbs=list,delete", "-o", "name"))
	kinds = slices.DeleteFunc(kinds, func(kind string) bool { return strings.HasPrefix(kind, "events") })
	kinds = append(kinds, "clusterroles", "clusterrolebindings", "customresourcedefinitions", "persistentvolumes")
	out := strings.Split(kubectl.must(t, "get", strings.Join(kinds, ","), "--ignore-not-found", "-o", "name"), "\n")
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func clientOf(t *testing.T, c *cluster.Cluster) *kubernetes.Clientset {
	t.Helper()
	config, err := c.REST()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func createNodes(t *testing.T, c *cluster.Cluster, n int) {
	t.Helper()
	client := clientOf(t, c)
	for i := range n {
		name := fmt.Sprintf("node-%d", i)
		capacity := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("110")}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
			Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
		}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// createVolumes creates volumes for the claims of etcd and NATS, as a provisioner would;
// kube-controller-manager binds them.
func createVolumes(t *testing.T, c *cluster.Cluster, n int) {
	t.Helper()
	client := clientOf(t, c)
	for i := range n {
		volume := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("volume-%d", i)},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      corev1.ResourceList{"storage": resource.MustParse("20Gi")},
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/volume"}},
			},
		}
		if _, err := client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

package node

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// TestChart installs the Helm chart on the node: a control plane as Pods of the cluster that
// the API server under test serves. It is used, scaled, upgraded and rolled back while clients
// write, of whose writes none may fail, and uninstalled, which leaves nothing.
func TestChart(t *testing.T) {
	if testing.Short() {
		t.Skip("helm and CoreDNS take minutes to build (-short)")
	}
	c, n := Run(t, *target, *replicas, nil)
	n.RunDNS(t, cli.Kubectl(t, c.Kubeconfig, ""))
	k := cli.Kubectl(t, c.Kubeconfig, "hosted")
	n.importChartImages(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(k.Try("get", "pods", "-o", "wide").Stdout, k.Try("get", "events", "--sort-by=.lastTimestamp").Stdout)
		}
	})
	helm := releases(t, c.Kubeconfig)
	values := func(set ...string) []string {
		args := []string{"t", helm.chart, "--values=" + filepath.Join(helm.chart, "ci", "small-values.yaml"), "--wait", "--timeout=4m"}
		// Requests of processor time are those of a larger node.
		for _, component := range []string{"aggregator", "core", "extensions", "etcd", "nats"} {
			set = append(set, component+".resources.requests.cpu=10m")
		}
		return append(args, "--set="+strings.Join(set, ","))
	}
	began := time.Now()
	helm.Run(append([]string{"install", "--create-namespace"}, values()...)...)
	t.Logf("installed in %v", time.Since(began).Round(time.Second))
	helm.Run("test", "t", "--timeout=2m")

	hosted := hostedClient(t, k)
	w := startWriters(t, hosted)
	began = time.Now()
	helm.Run(append([]string{"upgrade"}, values("aggregator.replicaCount=2", "core.replicaCount=2", "extensions.replicaCount=2")...)...)
	t.Logf("scaled to two replicas each in %v, %d writes", time.Since(began).Round(time.Second), w.written.Load())
	began = time.Now()
	helm.Run(append([]string{"upgrade"}, values("aggregator.replicaCount=2", "core.replicaCount=2", "extensions.replicaCount=2",
		"aggregator.podAnnotations.of=another", "core.podAnnotations.of=another", "extensions.podAnnotations.of=another")...)...)
	t.Logf("upgraded in %v, %d writes", time.Since(began).Round(time.Second), w.written.Load())
	began = time.Now()
	helm.Run("rollback", "t", "2", "--wait", "--timeout=4m")
	t.Logf("rolled back in %v, %d writes", time.Since(began).Round(time.Second), w.written.Load())
	w.stop(t)
	helm.Run("test", "t", "--timeout=2m")

	helm.Run("uninstall", "t", "--wait", "--timeout=2m")
	nothingLeft(t, k, "")

	// The Secrets of a release that keeps them serve one that expects them.
	helm.Run(append([]string{"install"}, values("tls.selfSigned.whenDeleted=Retain")...)...)
	helm.Run("uninstall", "t", "--wait", "--timeout=2m")
	nothingLeft(t, k, "secret/t-triune-")
	helm.Run(append([]string{"install"}, values("tls.mode=existingSecret", "tls.existingSecretPrefix=t-triune")...)...)
	helm.Run("test", "t", "--timeout=2m")
	helm.Run("uninstall", "t", "--wait", "--timeout=2m")
	nothingLeft(t, k, "secret/t-triune-")

	// cert-manager makes the Secrets, and keeps them as is its default.
	k.Run("delete", "secrets", "--all")
	startCertManager(t, c, k)
	helm.Run(append([]string{"install"}, values("tls.mode=certManager")...)...)
	helm.Run("test", "t", "--timeout=2m")
	helm.Run("uninstall", "t", "--wait", "--timeout=2m")
	nothingLeft(t, k, "secret/t-triune-")
}

// startCertManager starts cert-manager beside the node, with the CRDs of its module.
func startCertManager(t *testing.T, c *cluster.Cluster, k cli.Command) {
	t.Helper()
	dir, err := tools.Projects["cert-manager"].Dir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k.Run("apply", "--server-side", "--filename="+filepath.Join(dir, "deploy", "crds"))
	k.Run("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	if _, err := c.StartCertManager(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// nothingLeft waits until only objects with this prefix of their names are left in the namespace,
// beside those that Kubernetes puts there.
func nothingLeft(t *testing.T, k cli.Command, kept string) {
	t.Helper()
	kinds := strings.Fields(k.Run("api-resources", "--namespaced", "--verbs=list", "-o", "name"))
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		left := leftovers(k, kinds, kept)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the release has left %s", strings.Join(left, " "))
		}
	}
}

func leftovers(k cli.Command, kinds []string, kept string) []string {
	var left []string
	for _, name := range strings.Fields(k.Run("get", strings.Join(kinds, ","), "-o", "name", "--ignore-not-found")) {
		switch {
		case kept != "" && strings.HasPrefix(name, kept), name == "configmap/kube-root-ca.crt", name == "serviceaccount/default", strings.HasPrefix(name, "event/"), strings.HasPrefix(name, "event.events.k8s.io/"):
		default:
			left = append(left, name)
		}
	}
	return left
}

// release is helm for the namespace of the chart.
type release struct {
	cli.Command
	chart string
}

func releases(t *testing.T, kubeconfig string) release {
	t.Helper()
	path, err := tools.Path(t.Context(), "helm")
	if err != nil {
		t.Fatal(err)
	}
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return release{chart: filepath.Join(root, "deploy", "helm", "triune"), Command: cli.Command{
		T: t, Path: path, Args: []string{"--kubeconfig=" + kubeconfig, "--namespace=hosted"}, Limit: 6 * time.Minute,
		Env: []string{"HELM_CACHE_HOME=" + dir, "HELM_CONFIG_HOME=" + dir, "HELM_DATA_HOME=" + dir},
	}}
}

// importChartImages gives the node the images that the chart names, with programs of this
// checkout.
func (n *Node) importChartImages(t *testing.T) {
	t.Helper()
	var images []Image
	add := func(name, inImage, program string, image Image) {
		layer := filepath.Join(t.TempDir(), "layer.tar")
		if err := WriteLayer(layer, Entry{Name: inImage, Source: program}); err != nil {
			t.Fatal(err)
		}
		image.Name, image.Layers = name, []string{layer}
		images = append(images, image)
	}
	for _, tier := range []string{"aggregator", "core", "extensions"} {
		program, err := tools.Binary(tier)
		if err != nil {
			t.Fatal(err)
		}
		add("docker.io/triune/"+tier+":dev", "usr/local/bin/triune-server", program, Image{Entrypoint: []string{"/usr/local/bin/triune-server"}, User: "65532:65532"})
	}
	for name, image := range map[string]struct{ program, inImage string }{
		"gcr.io/etcd-development/etcd:v3.6.16": {"etcd", "usr/local/bin/etcd"},
		"docker.io/library/nats:2.15.2":        {"nats-server", "nats-server"},
	} {
		program, err := tools.Path(t.Context(), image.program)
		if err != nil {
			t.Fatal(err)
		}
		add(name, image.inImage, program, Image{})
	}
	if err := n.Import(t.Context(), images...); err != nil {
		t.Fatal(err)
	}
}

// hostedClient returns the administrator's client of the control plane in the Pods, which it
// reaches by the address of its Service.
func hostedClient(t *testing.T, k cli.Command) *kubernetes.Clientset {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(k.Run("get", "secret", "t-triune-admin", "-o", "jsonpath={.data.kubeconfig}"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	config.Host = "https://" + k.Run("get", "service", "t-triune", "-o", "jsonpath={.spec.clusterIP}")
	config.ServerName = "t-triune.hosted.svc"
	config.QPS, config.Burst = -1, 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// writers write ConfigMaps until they are stopped.
type writers struct {
	client  *kubernetes.Clientset
	written atomic.Int64
	end     context.CancelFunc
	ended   sync.WaitGroup

	mu     sync.Mutex
	failed []error
}

func startWriters(t *testing.T, client *kubernetes.Clientset) *writers {
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{client: client, end: cancel}
	for i := range 4 {
		w.ended.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("written-%d-%d", i, n)}}
				_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, meta.CreateOptions{})
				if err != nil {
					w.mu.Lock()
					w.failed = append(w.failed, fmt.Errorf("%s: %s: %w", time.Now().Format(time.TimeOnly), object.Name, err))
					w.mu.Unlock()
				} else {
					w.written.Add(1)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	return w
}

// stop stops the writers, and checks that no write has failed and that all are there.
func (w *writers) stop(t *testing.T) {
	t.Helper()
	w.end()
	w.ended.Wait()
	if len(w.failed) > 0 {
		t.Errorf("%d of %d writes have failed: %v", len(w.failed), w.written.Load()+int64(len(w.failed)), errors.Join(w.failed[:min(len(w.failed), 5)]...))
	}
	list, err := w.client.CoreV1().ConfigMaps("default").List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	there := int64(0)
	for _, object := range list.Items {
		if strings.HasPrefix(object.Name, "written-") {
			there++
		}
	}
	if there < w.written.Load() {
		t.Errorf("%d objects are there, %d were written", there, w.written.Load())
	}
}

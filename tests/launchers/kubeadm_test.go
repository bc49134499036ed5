package launchers

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"triune.dev/tests/cluster"
)

// TestKubeadm runs the phases of `kubeadm init` that need no kubelet. In the kubelet's place,
// the test runs the command of the static pod, and its probes. Then kubeadm changes the
// manifest, and the new server serves what the old one has stored.
func TestKubeadm(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("kubeadm needs root, to work in a directory of its own (--rootfs)")
	}
	k := newKubeadm(t)
	k.writeConfig("")
	for _, phase := range [][]string{{"certs", "all"}, {"kubeconfig", "admin"}, {"kubeconfig", "super-admin"}, {"control-plane", "apiserver"}} {
		k.phase(phase...)
	}
	stop := k.runPod()
	const super = "--kubeconfig=/etc/kubernetes/super-admin.conf"
	for _, phase := range [][]string{
		{"upload-config", "all", super}, {"upload-certs", "--upload-certs", super}, {"bootstrap-token", super},
		{"addon", "coredns", super}, {"addon", "kube-proxy", super},
	} {
		k.phase(phase...)
	}
	if join := k.kubeadm.run("token", "create", "--print-join-command", super, k.rootfs()); !strings.HasPrefix(join, "kubeadm join "+k.address) {
		t.Errorf("it says %q", join)
	}
	tokens := k.kubeadm.run("token", "list", super, k.rootfs())
	if strings.Count(tokens, "authentication,signing") != 2 {
		t.Errorf("two tokens of nodes were created:\n%s", tokens)
	}
	stop()

	k.writeConfig("apiServer: {extraArgs: [{name: max-requests-inflight, value: \"300\"}, {name: v, value: \"2\"}]}\n")
	k.phase("control-plane", "apiserver")
	defer k.runPod()()
	if again := k.kubeadm.run("token", "list", super, k.rootfs()); again != tokens {
		t.Errorf("after the new manifest:\n%s\nbefore:\n%s", again, tokens)
	}
	k.kubectl.run("get", "--namespace=kube-system", "deployment/coredns", "daemonset/kube-proxy", "configmap/kubeadm-config")
}

type kubeadm struct {
	t                *testing.T
	programs, root   string
	address, etcd    string
	kubeadm, kubectl command
}

// newKubeadm starts an etcd.
func newKubeadm(t *testing.T) *kubeadm {
	t.Helper()
	k := &kubeadm{t: t, programs: programs(t, "etcd", "kubeadm", "kubectl"), root: t.TempDir()}
	k.kubeadm = command{t: t, path: filepath.Join(k.programs, "kubeadm")}
	k.kubectl = command{t: t, path: filepath.Join(k.programs, "kubectl"), env: []string{"KUBECONFIG=" + filepath.Join(k.root, "etc/kubernetes/super-admin.conf")}}
	k.address = net.JoinHostPort(ownAddress(t), freePort(t))
	k.etcd = "http://127.0.0.1:" + freePort(t)
	peers := "http://127.0.0.1:" + freePort(t)
	k.start("etcd", "--data-dir="+t.TempDir(), "--unsafe-no-fsync", "--log-level=error", "--listen-client-urls="+k.etcd, "--advertise-client-urls="+k.etcd,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers)
	return k
}

// ownAddress returns an address of this machine. kubeadm takes no loopback address.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range all {
		if ip, _, err := net.ParseCIDR(address.String()); err == nil && ip.To4() != nil && ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	t.Fatal("this machine has loopback addresses only, which kubeadm does not take")
	return ""
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(port)
}

// start starts a program, and returns what stops it, with SIGTERM, and expects status 0.
func (k *kubeadm) start(name string, args ...string) (stop func()) {
	k.t.Helper()
	log, err := os.Create(filepath.Join(k.t.TempDir(), "log"))
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(k.programs, name), args...)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		_ = cmd.Process.Kill() // if it was not stopped
		_ = cmd.Wait()
		if content, err := os.ReadFile(log.Name()); k.t.Failed() && err == nil {
			k.t.Logf("%s:\n%s", name, content[max(0, len(content)-2000):])
		}
		_ = log.Close()
	})
	return func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			k.t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			k.t.Errorf("%s: %v", name, err)
		}
	}
}

// rootfs is the flag that makes kubeadm use files below k.root only.
func (k *kubeadm) rootfs() string { return "--rootfs=" + k.root }

func (k *kubeadm) writeConfig(more string) {
	k.t.Helper()
	host, port, _ := net.SplitHostPort(k.address)
	config := fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %s, bindPort: %s}
nodeRegistration: {name: node-1, criSocket: "unix:///none.sock"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
etcd: {external: {endpoints: [%q]}}
%s`, host, port, k.etcd, more)
	if err := os.WriteFile(filepath.Join(k.root, "kubeadm.yaml"), []byte(config), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kubeadm) phase(args ...string) {
	k.t.Helper()
	k.kubeadm.run(append([]string{"init", "phase"}, append(args, "--config=/kubeadm.yaml", k.rootfs())...)...)
}

// runPod runs the container of the manifest until its startup and readiness probes succeed.
func (k *kubeadm) runPod() (stop func()) {
	k.t.Helper()
	manifest, err := os.ReadFile(filepath.Join(k.root, "etc/kubernetes/manifests/kube-apiserver.yaml"))
	if err != nil {
		k.t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(manifest, &pod); err != nil {
		k.t.Fatal(err)
	}
	container := pod.Spec.Containers[0]
	var args []string
	for _, arg := range container.Command[1:] {
		args = append(args, strings.ReplaceAll(arg, "/etc/kubernetes/", k.root+"/etc/kubernetes/"))
	}
	stop = k.start(container.Command[0], args...)
	authority, err := os.ReadFile(filepath.Join(k.root, "etc/kubernetes/pki/ca.crt"))
	if err != nil {
		k.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	kubelet := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		until(k.t, probe.HTTPGet.Path, func() bool {
			resp, err := kubelet.Get("https://" + k.address + probe.HTTPGet.Path)
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
	}
	return stop
}

package launchers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"triune.dev/tests/cli"
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
	if join := k.kubeadm.Run("token", "create", "--print-join-command", super, k.rootfs()); !strings.HasPrefix(join, "kubeadm join "+k.address) {
		t.Errorf("it says %q", join)
	}
	tokens := k.kubeadm.Run("token", "list", super, k.rootfs())
	if strings.Count(tokens, "authentication,signing") != 2 {
		t.Errorf("two tokens of nodes were created:\n%s", tokens)
	}
	stop()

	k.writeConfig("apiServer: {extraArgs: [{name: max-requests-inflight, value: \"300\"}, {name: v, value: \"2\"}]}\n")
	k.phase("control-plane", "apiserver")
	defer k.runPod()()
	if again := k.kubeadm.Run("token", "list", super, k.rootfs()); again != tokens {
		t.Errorf("after the new manifest:\n%s\nbefore:\n%s", again, tokens)
	}
	k.kubectl.Run("get", "--namespace=kube-system", "deployment/coredns", "daemonset/kube-proxy", "configmap/kubeadm-config")
}

type kubeadm struct {
	t                *testing.T
	programs, root   string
	address, etcd    string
	kubeadm, kubectl cli.Command
}

// newKubeadm starts an etcd.
func newKubeadm(t *testing.T) *kubeadm {
	t.Helper()
	k := &kubeadm{t: t, programs: programs(t, "kubeadm", "kubectl"), root: t.TempDir(), etcd: cluster.RunEtcd(t)}
	k.kubeadm = cli.Command{T: t, Path: filepath.Join(k.programs, "kubeadm")}
	k.kubectl = cli.Command{T: t, Path: filepath.Join(k.programs, "kubectl"), Env: []string{"KUBECONFIG=" + filepath.Join(k.root, "etc/kubernetes/super-admin.conf")}}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	k.address = net.JoinHostPort(ownAddress(t), strconv.Itoa(port))
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
	k.kubeadm.Run(append([]string{"init", "phase"}, append(args, "--config=/kubeadm.yaml", k.rootfs())...)...)
}

// runPod runs the container of the manifest, and returns when its probes succeed. stop ends
// it with SIGTERM and expects status 0.
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
	authority, err := os.ReadFile(filepath.Join(k.root, "etc/kubernetes/pki/ca.crt"))
	if err != nil {
		k.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	kubelet := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	server := &cluster.Process{
		Name: container.Command[0], Path: filepath.Join(k.programs, container.Command[0]), Args: args,
		Dir: k.root, LogFile: filepath.Join(k.t.TempDir(), "log"),
	}
	k.t.Cleanup(func() {
		server.Kill() // if it was not stopped
		if k.t.Failed() {
			k.t.Logf("%s:\n%s", server.Name, server.Log(2000))
		}
	})
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	err = server.Start(ctx, func(context.Context) error {
		for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
			resp, err := kubelet.Get("https://" + k.address + probe.HTTPGet.Path)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", probe.HTTPGet.Path, resp.Status)
			}
		}
		return nil
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return func() {
		if err := errors.Join(server.Stop(), server.Wait(context.WithoutCancel(k.t.Context()))); err != nil {
			k.t.Error(err)
		}
	}
}

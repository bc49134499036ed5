package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

const (
	serviceRange = "10.0.0.0/24"
	clusterDNS   = "10.0.0.10"
	cniPlugins   = "/usr/lib/cni"
	busyboxPath  = "/bin/busybox"
	prefix       = "triune-node-"
	startTimeout = 2 * time.Minute
)

// Missing returns what this machine lacks for a node, in one line; "" if it lacks nothing.
func Missing() string {
	var lacks []string
	if os.Getuid() != 0 {
		lacks = append(lacks, "root")
	}
	for program, debian := range map[string]string{
		"containerd": "containerd", "runc": "runc", "ctr": "containerd", "ip": "iproute2", "iptables": "iptables",
		"conntrack": "conntrack", "nsenter": "util-linux", "sysctl": "procps", "mount": "mount",
	} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, fmt.Sprintf("%s (apt-get install %s)", program, debian))
		}
	}
	for file, debian := range map[string]string{cniPlugins + "/bridge": "containernetworking-plugins", busyboxPath: "busybox-static"} {
		if _, err := os.Stat(file); err != nil {
			lacks = append(lacks, fmt.Sprintf("%s (apt-get install %s)", file, debian))
		}
	}
	if _, err := hierarchies(); err != nil {
		lacks = append(lacks, cgroups)
	}
	if len(lacks) == 0 {
		return ""
	}
	return "a node needs " + strings.Join(lacks, ", ")
}

// ClusterConfig returns the configuration of a cluster whose API servers reach the node, and
// the node them. keys is a PKI with [PKIOptions].
func ClusterConfig(topology cluster.Topology, replicas int, keys *pki.PKI) cluster.Config {
	config := cluster.Config{Topology: topology, Replicas: replicas, PKI: keys, Flags: map[cluster.Tier][]string{}}
	for _, tier := range (&cluster.Cluster{Config: config}).ServingTiers() {
		config.Flags[tier] = serverFlags(tier, keys)
	}
	return config
}

// StartControllers starts what makes and schedules Pods.
func StartControllers(ctx context.Context, c *cluster.Cluster) error {
	if _, err := c.StartControllerManager(ctx); err != nil {
		return err
	}
	_, err := c.StartScheduler(ctx)
	return err
}

// serverFlags are what the API server needs for the node: it listens where the node is, and
// knows the way to it.
func serverFlags(tier cluster.Tier, p *pki.PKI) []string {
	flags := []string{"--bind-address=0.0.0.0", "--advertise-address=" + hostAddress}
	if tier != cluster.Aggregator && tier != cluster.Extensions {
		flags = append(flags,
			"--kubelet-client-certificate="+p.Admin.CertFile, "--kubelet-client-key="+p.Admin.KeyFile,
			"--kubelet-certificate-authority="+p.ClusterCA.CertFile,
			"--kubelet-preferred-address-types=InternalIP")
	}
	return flags
}

// PKIOptions are those of a PKI for such a server.
func PKIOptions() pki.Options { return pki.Options{ExtraNames: []string{hostAddress}} }

// Node is a running node.
type Node struct {
	// Name is that of the Node object.
	Name string
	// Dir has its files.
	Dir string
	// Kubelet, Containerd and Proxy are its programs.
	Kubelet, Containerd, Proxy *cluster.Process

	cluster     *cluster.Cluster
	network     *network
	endApproval func() error
}

// Start starts a node of the cluster, which joins by a bootstrap token of the form
// "id.secret". A process has one at a time. The caller closes it, also after an error if the
// node is not nil.
func Start(ctx context.Context, c *cluster.Cluster, token string) (*Node, error) {
	if err := Sweep(); err != nil {
		return nil, err
	}
	n := newNode(strconv.Itoa(os.Getpid()))
	n.cluster = c
	if err := os.Mkdir(n.Dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if n.network, err = newNetwork(ctx, n.Name, serviceRange); err != nil {
		return nil, err
	}
	if err := newCgroup(n.Name); err != nil {
		return n, err
	}
	for _, start := range []func(context.Context) error{n.startContainerd, n.importImages, n.startProxy,
		func(context.Context) error { return n.approveServing() },
		func(ctx context.Context) error { return n.startKubelet(ctx, token) }} {
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		err := start(ctx)
		cancel()
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// newNode returns the node of a process.
func newNode(pid string) *Node {
	return &Node{Name: prefix + pid, Dir: filepath.Join(os.TempDir(), prefix+pid)}
}

// Server returns the URL of the API server as the node sees it.
func (n *Node) Server() string {
	url := n.cluster.ReplicaURL(n.cluster.ServingTiers()[0], 0)
	return "https://" + hostAddress + url[strings.LastIndexByte(url, ':'):]
}

// KubeletDir returns kubelet's directory, with the volumes of Pods.
func (n *Node) KubeletDir() string { return n.file("kubelet") }

func (n *Node) file(parts ...string) string {
	return filepath.Join(append([]string{n.Dir}, parts...)...)
}

func (n *Node) write(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(n.file(name)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(n.file(name), []byte(content), 0o600)
}

// process returns a program that runs in the namespace of the node.
func (n *Node) process(name, path string, args ...string) *cluster.Process {
	line := n.network.enter(append([]string{path}, args...)...)
	return &cluster.Process{Name: name, Path: line[0], Args: line[1:], Dir: n.Dir, LogFile: n.file(name + ".log")}
}

func (n *Node) startContainerd(ctx context.Context) error {
	path, err := exec.LookPath("containerd")
	if err != nil {
		return err
	}
	config := fmt.Sprintf(`version = 2
root = %[1]q
state = %[2]q
[grpc]
  address = %[3]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[4]q
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[5]q
    conf_dir = %[6]q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    Root = %[7]q
`, n.file("containerd"), n.file("run"), n.socket(), PauseImage, cniPlugins, n.file("cni"), n.file("runc"))
	network := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, n.file("ipam"), podRange)
	if err := errors.Join(n.write("containerd.toml", config), n.write("cni/10-pods.conflist", network)); err != nil {
		return err
	}
	n.Containerd = n.process("containerd", path, "--config="+n.file("containerd.toml"))
	return n.Containerd.Start(ctx, func(ctx context.Context) error { return n.ctr(ctx, "version") })
}

// socket is short: the address of a Unix socket has at most 107 bytes.
func (n *Node) socket() string { return filepath.Join("/run", n.Name+".sock") }

func (n *Node) ctr(ctx context.Context, args ...string) error {
	return run(ctx, append([]string{"ctr", "--address=" + n.socket(), "--namespace=k8s.io"}, args...)...)
}

func (n *Node) importImages(ctx context.Context) error {
	kubectl, err := tools.Path(ctx, "kubectl")
	if err != nil {
		return err
	}
	return errors.Join(
		n.ImportPrograms(ctx, PauseImage, nil, "/bin/busybox", "sleep", "2147483647"),
		n.ImportPrograms(ctx, ToolsImage, []string{kubectl}, "/bin/sh"))
}

func (n *Node) startProxy(ctx context.Context) error {
	path, err := tools.Path(ctx, "kube-proxy")
	if err != nil {
		return err
	}
	kubeconfig := n.file("proxy.kubeconfig")
	if err := pki.WriteKubeconfig(kubeconfig, pki.Access{Server: n.Server(), CAFile: n.cluster.PKI.ClusterCA.CertFile, Client: n.cluster.PKI.Admin}); err != nil {
		return err
	}
	n.Proxy = n.process("kube-proxy", path, "--kubeconfig="+kubeconfig, "--hostname-override="+n.Name, "--proxy-mode=iptables",
		"--cluster-cidr="+podRange, "--conntrack-max-per-core=0", "--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249")
	return n.Proxy.Start(ctx, nil)
}

func (n *Node) startKubelet(ctx context.Context, token string) error {
	path, err := tools.Path(ctx, "kubelet")
	if err != nil {
		return err
	}
	// Volumes of Pods must be visible to containerd.
	root := n.KubeletDir()
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{{"mount", "--bind", root, root}, {"mount", "--make-rshared", root}} {
		if err := run(ctx, args...); err != nil {
			return err
		}
	}
	ca := n.cluster.PKI.ClusterCA.CertFile
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %s
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%s
containerRuntimeEndpoint: unix://%s
podLogsDir: %s
staticPodPath: ""
authentication: {anonymous: {enabled: false}, webhook: {enabled: true, cacheTTL: 10s}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: [%s]
resolvConf: %s
rotateCertificates: true
serverTLSBootstrap: true
failSwapOn: false
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 0%%, imagefs.available: 0%%, nodefs.inodesFree: 0%%}
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 10
syncFrequency: 5s
containerLogMaxSize: 1Gi
`, nodeAddress, n.Name, n.socket(), n.file("logs"), ca, clusterDNS, n.file("resolv.conf"))
	bootstrap := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: joining, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: joining}}]
current-context: c
`, n.Server(), ca, token)
	if err := errors.Join(n.write("kubelet.yaml", config), n.write("bootstrap.kubeconfig", bootstrap), n.write("resolv.conf", "nameserver 127.0.0.1\n")); err != nil {
		return err
	}
	n.Kubelet = n.process("kubelet", path, "--config="+n.file("kubelet.yaml"), "--bootstrap-kubeconfig="+n.file("bootstrap.kubeconfig"),
		"--kubeconfig="+n.file("kubelet.kubeconfig"), "--cert-dir="+n.file("pki"), "--root-dir="+root, "--hostname-override="+n.Name, "--node-ip="+nodeAddress)
	return n.Kubelet.Start(ctx, nil)
}

// Logs returns the end of the logs of the programs.
func (n *Node) Logs(limit int64) string {
	var b strings.Builder
	for _, p := range []*cluster.Process{n.Kubelet, n.Containerd, n.Proxy} {
		if p != nil {
			fmt.Fprintf(&b, "==> %s <==\n%s\n", p.Name, p.Log(limit))
		}
	}
	return b.String()
}

// Close stops the programs and all containers, and removes the network, mounts and cgroups.
func (n *Node) Close() error {
	var errs []error
	if n.endApproval != nil {
		errs = append(errs, n.endApproval())
	}
	for _, p := range []*cluster.Process{n.Kubelet, n.Proxy} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	errs = append(errs, removeCgroup(n.Name))
	if n.Containerd != nil {
		errs = append(errs, n.Containerd.Stop())
	}
	return errors.Join(append(errs, n.remove())...)
}

// remove removes what no process of the node needs any more.
func (n *Node) remove() error {
	return errors.Join(killShims(n.socket()), unmountBelow(n.Dir), n.network.close(), os.RemoveAll(n.socket()), os.RemoveAll(n.socket()+".ttrpc"), os.RemoveAll(n.Dir))
}

// killShims kills the processes of containerd that outlive it.
func killShims(socket string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), "containerd-shim") && strings.Contains(string(line), socket) {
			kill(entry.Name())
		}
	}
	return nil
}

func kill(pid string) {
	if id, err := strconv.Atoi(pid); err == nil && id > 1 {
		_ = syscall.Kill(id, syscall.SIGKILL) // it may be gone
	}
}

// unmountBelow unmounts everything in a directory, the latest mount first.
func unmountBelow(dir string) error {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var errs []error
	lines := strings.Split(string(data), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) > 1 && (fields[1] == dir || strings.HasPrefix(fields[1], dir+"/")) {
			if err := syscall.Unmount(fields[1], syscall.MNT_DETACH); err != nil {
				errs = append(errs, fmt.Errorf("unmount %s: %w", fields[1], err))
			}
		}
	}
	return errors.Join(errs...)
}

// Sweep removes what runs have left whose process does not exist any more.
func Sweep() error {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range left {
		pid := strings.TrimPrefix(filepath.Base(dir), prefix)
		if _, err := os.Stat(filepath.Join("/proc", pid)); err == nil {
			continue
		}
		n := newNode(pid)
		n.network = networkOf(n.Name)
		errs = append(errs, removeCgroup(n.Name), n.remove())
	}
	return errors.Join(errs...)
}

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// TestKonnectivity lets the API server reach the node only by konnectivity: a proxy server
// beside the API server, and an agent on the node, which dials that server.
func TestKonnectivity(t *testing.T) {
	if testing.Short() {
		t.Skip("konnectivity takes a minute to build (-short)")
	}
	for _, mode := range []struct{ proxy, egress string }{{"grpc", "GRPC"}, {"http-connect", "HTTPConnect"}} {
		t.Run(mode.proxy, func(t *testing.T) {
			dir := t.TempDir()
			socket, egress := filepath.Join(dir, "socket"), filepath.Join(dir, "egress.yaml")
			if err := os.WriteFile(egress, fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- {name: cluster, connection: {proxyProtocol: %s, transport: {uds: {udsName: %q}}}}
`, mode.egress, socket), 0o600); err != nil {
				t.Fatal(err)
			}
			_, n := Run(t, *target, *replicas, func(config *cluster.Config) {
				for tier := range config.Flags {
					config.Flags[tier] = append(config.Flags[tier], "--egress-selector-config-file="+egress)
				}
			})
			checkKonnectivity(t, n, mode.proxy, socket)
		})
	}
}

func checkKonnectivity(t *testing.T, n *Node, mode, socket string) {
	k := cli.Kubectl(t, n.cluster.Kubeconfig, "")
	k.Stdin(web).Run("apply", "-f", "-")
	k.Run("rollout", "status", "deployment/web", "--timeout=120s")
	pod := strings.Fields(k.Run("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))[0]
	unreachable := func() {
		t.Helper()
		if o := k.Try("logs", pod); o.Code == 0 || !strings.Contains(o.Stderr, "Error from server") {
			t.Errorf("without konnectivity: %+v", o)
		}
	}
	unreachable()
	server, agent := startKonnectivity(t, n, mode, socket)
	k.Eventually(patience, "started", "logs", pod)
	execute(t, k, pod)
	forward(t, k, pod)
	k.Eventually(patience, "hello from", "get", "--raw", "/api/v1/namespaces/default/services/web/proxy/")
	k.Eventually(patience, "ok", "get", "--raw", "/api/v1/nodes/"+n.Name+"/proxy/healthz")
	agent.Kill() // it does not end on SIGTERM while it has a server
	server.Kill()
	unreachable()
	// What does not go to the node does not notice.
	k.Run("create", "configmap", "elsewhere")
	startKonnectivity(t, n, mode, socket)
	k.Eventually(patience, "started", "logs", pod)
}

// startKonnectivity starts both programs for the length of the test.
func startKonnectivity(t *testing.T, n *Node, mode, socket string) (server, agent *cluster.Process) {
	t.Helper()
	paths := map[string]string{}
	for _, name := range []string{"proxy-server", "proxy-agent"} {
		path, err := tools.Path(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		paths[name] = path
	}
	var ports [5]string
	for i := range ports {
		port, err := cluster.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	keys := n.cluster.PKI
	serving := keys.Serving["aggregator"]
	server = &cluster.Process{Name: "proxy-server", Path: paths["proxy-server"], LogFile: n.file("proxy-server.log"), Args: []string{
		"--mode=" + mode, "--uds-name=" + socket, "--server-port=0", "--delete-existing-uds-file=true",
		"--agent-bind-address=" + hostAddress, "--agent-port=" + ports[0], "--cluster-cert=" + serving.CertFile, "--cluster-key=" + serving.KeyFile, "--cluster-ca-cert=" + keys.ClusterCA.CertFile,
		"--admin-port=" + ports[1], "--health-bind-address=127.0.0.1", "--health-port=" + ports[2]}}
	agent = n.process("proxy-agent", paths["proxy-agent"], "--proxy-server-host="+hostAddress, "--proxy-server-port="+ports[0], "--ca-cert="+keys.ClusterCA.CertFile,
		"--agent-cert="+keys.Admin.CertFile, "--agent-key="+keys.Admin.KeyFile, "--sync-interval=500ms", "--sync-interval-cap=1s", "--admin-server-port="+ports[3], "--health-server-host=127.0.0.1", "--health-server-port="+ports[4])
	for _, p := range []*cluster.Process{server, agent} {
		if err := p.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("==> %s <==\n%s", p.Name, p.Log(4<<10))
			}
			p.Kill()
		})
	}
	return server, agent
}

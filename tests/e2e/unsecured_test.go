package e2e

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// TestInsecureLoopbackPort: kubectl works without any credentials.
func TestInsecureLoopbackPort(t *testing.T) {
	needs(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	c := cluster.Run(t, cluster.Config{Topology: cluster.Triune, Flags: map[cluster.Tier][]string{
		cluster.Tier(cluster.Triune): {"--insecure-loopback-port=" + port},
	}})
	path, err := tools.Path(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(arguments ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig=/dev/null", "--server=http://" + address}, arguments...)...)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v: %s", strings.Join(arguments, " "), err, output)
		}
		return string(output)
	}
	kubectl("create", "configmap", "a", "--from-literal=b=c")
	if got := kubectl("get", "configmap", "a", "-o", "jsonpath={.data.b}"); got != "c" {
		t.Errorf("data is %q", got)
	}
	if got := kubectl("auth", "whoami"); !strings.Contains(got, "system:unsecured") {
		t.Errorf("kubectl is %s", got)
	}
	if log := c.Logs(64 << 10); strings.Count(log, "serves without authentication") != 1 {
		t.Error("the log has not one line about it")
	}
}

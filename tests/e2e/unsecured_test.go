package e2e

import (
	"net"
	"os"
	"strings"
	"testing"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
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
	kubectl := cli.Kubectl(t, os.DevNull, "")
	kubectl.Args = []string{"--server=http://" + address}
	kubectl.Run("create", "configmap", "a", "--from-literal=b=c")
	if got := kubectl.Run("get", "configmap", "a", "-o", "jsonpath={.data.b}"); got != "c" {
		t.Errorf("data is %q", got)
	}
	if got := kubectl.Run("auth", "whoami"); !strings.Contains(got, "system:unsecured") {
		t.Errorf("kubectl is %s", got)
	}
	if log := c.Logs(64 << 10); strings.Count(log, "serves without authentication") != 1 {
		t.Error("the log has not one line about it")
	}
}

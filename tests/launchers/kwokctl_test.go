package launchers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/cli"
)

// TestKwokctl has kwokctl create a cluster by its binary runtime, fill it, and stop and start
// it again.
func TestKwokctl(t *testing.T) {
	dir := programs(t, "etcd", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "kwokctl")
	home := filepath.Join(dir, "home") // kwokctl links the programs there, and starts those
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(home, "kubeconfig")
	env := []string{"HOME=" + home, "KUBECONFIG=" + kubeconfig, "PATH=" + dir}
	kwokctl := cli.Command{T: t, Path: filepath.Join(dir, "kwokctl"), Args: []string{"--name=launched"}, Env: env}
	kubectl := cli.Command{T: t, Path: filepath.Join(dir, "kubectl"), Env: env}
	t.Cleanup(func() {
		logs, _ := filepath.Glob(filepath.Join(home, ".kwok/clusters/launched/logs/*.log"))
		for _, path := range logs {
			if content, err := os.ReadFile(path); t.Failed() && err == nil {
				t.Logf("%s:\n%s", filepath.Base(path), content[max(0, len(content)-2000):])
			}
		}
	})
	begin := time.Now()
	create := []string{"create", "cluster", "--runtime=binary", "--wait=1m", "--kubeconfig=" + kubeconfig, "--kwok-controller-binary=" + filepath.Join(dir, "kwok")}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		create = append(create, "--"+name+"-binary="+filepath.Join(dir, name))
	}
	kwokctl.Run(create...)
	t.Logf("the cluster is ready after %v", time.Since(begin).Round(10*time.Millisecond))

	kwokctl.Run("scale", "node", "--replicas=3")
	kubectl.Run("create", "deployment", "web", "--image=web", "--replicas=4")
	kubectl.Run("rollout", "status", "deployment/web", "--timeout=1m")
	before := kubectl.Run("get", "pods", "--output=name")

	kwokctl.Run("stop", "cluster")
	if left := running(t, dir); len(left) != 0 {
		t.Errorf("processes %v still run", left)
	}
	kwokctl.Run("start", "cluster", "--wait=1m")
	if after := kubectl.Run("get", "pods", "--output=name"); after != before || strings.Count(after, "pod/web-") != 4 {
		t.Errorf("pods %q, before %q", after, before)
	}
	// A new kwok takes its nodes over after a minute, so the fifth pod is not awaited to run.
	kubectl.Run("scale", "deployment/web", "--replicas=5")
	until(t, "a fifth pod", func() bool {
		return strings.Count(kubectl.Run("get", "pods", "--field-selector=spec.nodeName!=", "--output=name"), "pod/web-") == 5
	})
	kwokctl.Run("delete", "cluster")
}

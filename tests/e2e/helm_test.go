package e2e

import (
	"encoding/json"
	"testing"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

const chart = "testdata/chart"

// TestHelm takes a chart with a CRD, a custom resource and hooks through the life of a
// release. The hooks are Jobs, so the controllers must run.
func TestHelm(t *testing.T) {
	full(t)
	c := server(t)
	startControlPlane(t, c)
	createNodes(t, c, 1)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	k.Run("wait", "--for=condition=Ready", "node", "-l", "suite=controllers", "--timeout=60s")
	helm := newHelm(t, c, ns)

	field := func(t *testing.T, what, path, want string) {
		t.Helper()
		if got := k.Of(t).Run("get", what, "-o", "jsonpath="+path); got != want {
			t.Errorf("%s of %s is %q, want %q", path, what, got, want)
		}
	}
	t.Run("install", func(t *testing.T) {
		helm.Of(t).Says([]string{"STATUS: deployed", "app says hello"}, "install", "app", chart, "--wait", "--timeout=90s")
		field(t, "configmap/app-settings", "{.data.message}", "hello")
		field(t, "gadget/app", "{.spec.size}", "1")
		field(t, "deployment/app", "{.status.readyReplicas}", "1")
		field(t, "job/app-pre-install", "{.status.succeeded}", "1")
		field(t, "job/app-post-install", "{.status.succeeded}", "1")
		helm.Of(t).Fails("cannot reuse a name that is still in use", "install", "app", chart)
	})
	t.Run("upgrade", func(t *testing.T) {
		helm.Of(t).Says([]string{"STATUS: deployed", "REVISION: 2"}, "upgrade", "app", chart, "--set=replicas=2,message=bye", "--wait", "--timeout=90s")
		field(t, "configmap/app-settings", "{.data.message}", "bye")
		field(t, "deployment/app", "{.status.readyReplicas}", "2")
		field(t, "job/app-post-upgrade", "{.status.succeeded}", "1")
	})
	t.Run("test", func(t *testing.T) {
		helm.Of(t).Says([]string{"Phase:          Succeeded"}, "test", "app", "--timeout=90s")
	})
	t.Run("rollback", func(t *testing.T) {
		helm.Of(t).Run("rollback", "app", "1", "--wait", "--timeout=90s")
		field(t, "configmap/app-settings", "{.data.message}", "hello")
		field(t, "deployment/app", "{.spec.replicas}", "1")
		field(t, "job/app-pre-rollback", "{.status.succeeded}", "1")
		var history []struct {
			Revision int
			Status   string
		}
		if err := json.Unmarshal([]byte(helm.Of(t).Run("history", "app", "-o", "json")), &history); err != nil {
			t.Fatal(err)
		}
		if len(history) != 3 || history[2].Status != "deployed" || history[0].Status != "superseded" {
			t.Errorf("history: %+v", history)
		}
	})
	t.Run("read", func(t *testing.T) {
		helm.Of(t).Says([]string{"app", "deployed", "suite-1.0.0"}, "list")
		helm.Of(t).Says([]string{"kind: Gadget"}, "get", "manifest", "app")
		helm.Of(t).Says([]string{"kind: Job"}, "get", "hooks", "app")
	})
	t.Run("uninstall", func(t *testing.T) {
		helm.Of(t).Says([]string{"uninstalled"}, "uninstall", "app", "--wait", "--timeout=90s")
		k.Of(t).Fails("NotFound", "get", "deployment/app")
		k.Of(t).Fails("NotFound", "get", "gadget/app")
		field(t, "job/app-pre-delete", "{.status.succeeded}", "1")
		k.Of(t).Run("delete", "crd", "gadgets.helm.triune.dev")
	})
}

// newHelm returns helm with its own home.
func newHelm(t *testing.T, c *cluster.Cluster, namespace string) cli.Command {
	t.Helper()
	path, err := tools.Path(t.Context(), "helm")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	return cli.Command{T: t, Path: path, Args: []string{"--namespace=" + namespace}, Env: []string{
		"KUBECONFIG=" + c.Kubeconfig, "HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
	}}
}

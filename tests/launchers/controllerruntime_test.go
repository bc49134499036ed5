package launchers

import (
	"os"
	"testing"
	"time"

	"triune.dev/tests/cli"
	"triune.dev/tests/tools"
)

// packages of controller-runtime are those whose tests start a server. That of
// pkg/client/apiutil is missing: it downloads servers of other versions.
var packages = []string{
	"./pkg/envtest", "./pkg/client", "./pkg/builder", "./pkg/cache", "./pkg/cluster", "./pkg/controller/...", "./pkg/handler",
	"./pkg/internal/controller", "./pkg/internal/recorder", "./pkg/manager/...", "./pkg/metrics/filters", "./pkg/reconcile", "./pkg/source", "./pkg/webhook",
}

// TestControllerRuntime runs controller-runtime's own tests, unchanged, two packages at a
// time, each with servers of its own.
func TestControllerRuntime(t *testing.T) {
	module, err := tools.Projects["controller-runtime"].Dir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Files of the module cache are read-only, and no main module may be there.
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(module)); err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		packages = packages[:2]
	}
	gotest := cli.Command{T: t, Path: "go", Limit: 10 * time.Minute, Env: []string{
		"GOWORK=off", "CGO_ENABLED=0", "KUBEBUILDER_ASSETS=" + programs(t, "etcd", "kubectl"),
	}}
	t.Log(gotest.Run(append([]string{"test", "-C", dir, "-vet=off", "-count=1", "-p=2"}, packages...)...))
}

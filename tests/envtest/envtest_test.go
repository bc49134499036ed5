package envtest

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"triune.dev/tests/tools"
)

var target = flag.String("target", "triune", "program to start as kube-apiserver: triune or kube-apiserver")

// packages are those whose tests start a server. That of pkg/client/apiutil is missing: it
// downloads servers of other versions.
var packages = []string{
	"./pkg/envtest", "./pkg/client", "./pkg/builder", "./pkg/cache", "./pkg/cluster", "./pkg/controller/...", "./pkg/handler",
	"./pkg/internal/controller", "./pkg/internal/recorder", "./pkg/manager/...", "./pkg/metrics/filters", "./pkg/reconcile", "./pkg/source", "./pkg/webhook",
}

// TestControllerRuntime runs two packages at a time, each with servers of its own.
func TestControllerRuntime(t *testing.T) {
	module, err := tools.Projects["controller-runtime"].Dir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The go command compiles no main module in the module cache, and files there are
	// read-only.
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(module)); err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		packages = packages[:2]
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-vet=off", "-count=1", "-p=2"}, packages...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "KUBEBUILDER_ASSETS="+assets(t))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	t.Logf("%s", out[max(0, len(out)-4000):])
}

// assets returns a directory with the programs that envtest starts.
func assets(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"etcd", "kubectl", "kube-apiserver"} {
		path, err := tools.Path(t.Context(), name)
		if name == "kube-apiserver" && *target == "triune" {
			path, err = tools.Binary("triune")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

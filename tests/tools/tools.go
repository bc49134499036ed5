package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Tool describes the source of a program.
type Tool struct {
	// Name is the name of the binary.
	Name string
	// Package is the import path of its main package.
	Package string
	// Module is the module whose version names the build.
	Module string
	// Dir is the directory of the go.mod that selects the versions, relative to tests/.
	// Empty means tests/ itself, which is in the workspace; all others are outside.
	Dir string
	// Kubernetes programs get their version from link-time variables; without them
	// kube-apiserver reports v0.0.0-master, which Helm refuses.
	Kubernetes bool
	// Test says that the program is that of the package's tests.
	Test bool
}

var all = []Tool{
	{Name: "etcd", Package: "go.etcd.io/etcd/server/v3", Module: "go.etcd.io/etcd/server/v3"},
	{Name: "nats-server", Package: "github.com/nats-io/nats-server/v2", Module: "github.com/nats-io/nats-server/v2"},
	{Name: "kube-apiserver", Package: "k8s.io/kubernetes/cmd/kube-apiserver", Module: "k8s.io/kubernetes", Kubernetes: true},
	{Name: "kube-controller-manager", Package: "k8s.io/kubernetes/cmd/kube-controller-manager", Module: "k8s.io/kubernetes", Kubernetes: true},
	{Name: "kube-scheduler", Package: "k8s.io/kubernetes/cmd/kube-scheduler", Module: "k8s.io/kubernetes", Kubernetes: true},
	{Name: "kubelet", Package: "k8s.io/kubernetes/cmd/kubelet", Module: "k8s.io/kubernetes", Kubernetes: true},
	{Name: "kube-proxy", Package: "k8s.io/kubernetes/cmd/kube-proxy", Module: "k8s.io/kubernetes", Kubernetes: true},
	{Name: "kubectl", Package: "k8s.io/kubernetes/cmd/kubectl", Module: "k8s.io/kubernetes", Kubernetes: true},
	{Name: "kubeadm", Package: "k8s.io/kubernetes/cmd/kubeadm", Module: "k8s.io/kubernetes", Kubernetes: true},
	{Name: "agnhost", Package: "k8s.io/kubernetes/test/images/agnhost", Module: "k8s.io/kubernetes"},
	{Name: "nnp", Package: "k8s.io/kubernetes/test/images/nonewprivs", Module: "k8s.io/kubernetes"},
	{Name: "e2e.test", Package: "k8s.io/kubernetes/test/e2e", Module: "k8s.io/kubernetes", Kubernetes: true, Test: true},
	{Name: "ginkgo", Package: "github.com/onsi/ginkgo/v2/ginkgo", Module: "github.com/onsi/ginkgo/v2"},
	{Name: "sample-apiserver", Package: "k8s.io/sample-apiserver", Module: "k8s.io/sample-apiserver"},
	{Name: "kwok", Package: "sigs.k8s.io/kwok/cmd/kwok", Module: "sigs.k8s.io/kwok", Dir: "tools/kwok"},
	{Name: "kwokctl", Package: "sigs.k8s.io/kwok/cmd/kwokctl", Module: "sigs.k8s.io/kwok", Dir: "tools/kwok"},
	{Name: "metrics-server", Package: "sigs.k8s.io/metrics-server/cmd/metrics-server", Module: "sigs.k8s.io/metrics-server", Dir: "tools/metrics-server"},
	{Name: "coredns", Package: "github.com/coredns/coredns", Module: "github.com/coredns/coredns", Dir: "tools/coredns"},
	// v1.11 is cert-manager's last minor release whose programs are in its module.
	{Name: "cert-manager", Package: "github.com/cert-manager/cert-manager/cmd/controller", Module: "github.com/cert-manager/cert-manager", Dir: "tools/cert-manager"},
	{Name: "proxy-server", Package: "sigs.k8s.io/apiserver-network-proxy/cmd/server", Module: "sigs.k8s.io/apiserver-network-proxy", Dir: "tools/konnectivity"},
	{Name: "proxy-agent", Package: "sigs.k8s.io/apiserver-network-proxy/cmd/agent", Module: "sigs.k8s.io/apiserver-network-proxy", Dir: "tools/konnectivity"},
	{Name: "h2spec", Package: "github.com/summerwind/h2spec/cmd/h2spec", Module: "github.com/summerwind/h2spec", Dir: "tools/h2spec"},
	{Name: "helm", Package: "helm.sh/helm/v4/cmd/helm", Module: "helm.sh/helm/v4", Dir: "tools/helm"},
	{Name: "docker-compose", Package: "github.com/docker/compose/v2/cmd", Module: "github.com/docker/compose/v2", Dir: "tools/compose"},
	{Name: "prometheus", Package: "github.com/prometheus/prometheus/cmd/prometheus", Module: "github.com/prometheus/prometheus", Dir: "tools/prometheus"},
	{Name: "promtool", Package: "github.com/prometheus/prometheus/cmd/promtool", Module: "github.com/prometheus/prometheus", Dir: "tools/prometheus"},
	{Name: "golangci-lint", Package: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint", Module: "github.com/golangci/golangci-lint/v2", Dir: "tools/golangci-lint"},
}

// All lists the tools in build order: those that compile packages for others come first.
func All() []Tool { return slices.Clone(all) }

// ErrUnknown is returned for a name that All does not list.
var ErrUnknown = errors.New("unknown tool")

// Root is the directory of go.work, found upwards from the working directory.
var Root = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the checkout: no go.work in this directory or above it")
		}
		dir = parent
	}
})

// Path returns the path of a tool, and builds the pinned version first if it is missing. A
// first build of a Kubernetes program takes minutes.
func Path(ctx context.Context, name string) (string, error) {
	return Build(ctx, name, func(string) {})
}

// Build is [Path] that calls building, with the version, before it builds the tool.
func Build(ctx context.Context, name string, building func(version string)) (string, error) {
	i := slices.IndexFunc(all, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return "", fmt.Errorf("%w %q", ErrUnknown, name)
	}
	return all[i].path(ctx, building)
}

// Binary returns one of Triune's own binaries. They are not built here: the
// Makefile's build target stamps them, and a stale one is better reported than
// silently replaced.
//
// The go command caches the result of a test for the files of its module and for the
// environment that it has read. TRIUNE_TREE stands for what is not in the module: the
// Makefile sets it to another value whenever a file of the checkout has changed.
func Binary(name string) (string, error) {
	_ = os.Getenv("TRIUNE_TREE")
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s (run `make build`): %w", name, err)
	}
	return path, nil
}

func (t Tool) path(ctx context.Context, building func(version string)) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	version, err := t.version(ctx, root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".tools")
	path := filepath.Join(dir, t.Name+"@"+version, t.Name)
	if _, err := os.Stat(path); err == nil {
		return path, t.link(dir, version)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("build %s: %w", t.Name, err)
	}
	unlock, err := lock(filepath.Join(dir, t.Name+".lock"))
	if err != nil {
		return "", fmt.Errorf("build %s: %w", t.Name, err)
	}
	defer unlock()
	if _, err := os.Stat(path); err != nil { // nobody else was faster
		building(version)
		if err := t.build(ctx, root, version, path); err != nil {
			return "", err
		}
	}
	return path, t.link(dir, version)
}

// link makes .tools/<name> point to a version, even if it points to a newer one: an old
// build may be the pinned one again.
func (t Tool) link(dir, version string) error {
	link, target := filepath.Join(dir, t.Name), filepath.Join(t.Name+"@"+version, t.Name)
	if now, err := os.Readlink(link); err == nil && now == target {
		return nil
	}
	// Rename it into place, so that it always exists for other processes.
	next := fmt.Sprintf("%s.%d.link", link, os.Getpid())
	if err := os.Symlink(target, next); err != nil {
		return fmt.Errorf("link %s: %w", t.Name, err)
	}
	if err := os.Rename(next, link); err != nil {
		return fmt.Errorf("link %s: %w", t.Name, err)
	}
	return nil
}

// build compiles to a temporary name, so that an interrupted build leaves no partial binary
// under the final one.
func (t Tool) build(ctx context.Context, root, version, path string) error {
	part := path + ".part"
	args := []string{"build", "-o", part}
	if t.Test {
		args = []string{"test", "-vet=off", "-c", "-o", part}
	}
	if t.Kubernetes {
		args = append(args, "-ldflags", kubernetesVersion(version))
	}
	if _, err := t.run(ctx, root, append(args, t.Package)...); err != nil {
		return fmt.Errorf("build %s: %w", t.Name, err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("build %s: %w", t.Name, err)
	}
	return nil
}

func (t Tool) version(ctx context.Context, root string) (string, error) {
	out, err := t.run(ctx, root, "list", "-m", "-f", "{{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}", t.Module)
	if err != nil {
		return "", fmt.Errorf("find the version of %s: %w", t.Name, err)
	}
	version := strings.TrimSpace(out)
	if version == "" {
		return "", fmt.Errorf("find the version of %s: module %s has none", t.Name, t.Module)
	}
	return version, nil
}

func (t Tool) run(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, goCommand(), args...)
	cmd.Dir = filepath.Join(root, "tests", t.Dir)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if t.Dir != "" {
		cmd.Env = append(cmd.Env, "GOWORK=off")
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), cmd.Dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// goCommand returns the Go command for builds; $GO replaces it, as in the Makefile.
func goCommand() string {
	if g := os.Getenv("GO"); g != "" {
		return g
	}
	return "go"
}

// kubernetesVersion returns the linker flags with which the release process of Kubernetes
// sets a version, see k8s.io/component-base/version.
func kubernetesVersion(version string) string {
	major, minor := "", ""
	if parts := strings.Split(strings.TrimPrefix(version, "v"), "."); len(parts) > 1 {
		major, minor = parts[0], parts[1]
	}
	const pkg = "k8s.io/component-base/version."
	return strings.Join([]string{
		"-X", pkg + "gitVersion=" + version,
		"-X", pkg + "gitMajor=" + major,
		"-X", pkg + "gitMinor=" + minor,
		"-X", pkg + "gitTreeState=clean",
	}, " ")
}

// ModuleDir returns the directory of a module that a go.mod selects, and downloads it first if
// necessary. dir is that of the go.mod, relative to tests/tools. Examples and manifests are
// read there and not copied.
func ModuleDir(ctx context.Context, dir, module string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	t := Tool{Name: module, Dir: filepath.Join("tools", dir)}
	if _, err := t.run(ctx, root, "mod", "download", module); err != nil {
		return "", fmt.Errorf("download %s: %w", module, err)
	}
	out, err := t.run(ctx, root, "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", module, err)
	}
	return strings.TrimSpace(out), nil
}

// Package pins keeps all go.mod files of the workspace at the same versions.
//
// k8s.io/kubernetes requires its staging modules (k8s.io/api and its siblings) at v0.0.0,
// because it is built from one source tree. An importer has to replace each of them with
// the release of that name, in every go.mod: a replacement only counts in the main module.
// And although a workspace selects one version of everything for all its modules, each
// go.mod must also require that version, so that a module built alone is the program that
// was tested.
//
// The modules below tests/tools are excluded: they exist because they need other versions.
package pins

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Kubernetes is the release whose API and behaviour Triune has. To upgrade, change it and
// run `make pins`.
const Kubernetes = "v1.36.3"

// kubernetesModule is the module with staging modules.
const kubernetesModule = "k8s.io/kubernetes"

// Pin is a version that must not rise with another requirement.
type Pin struct {
	Module, Version, Reason string
}

const etcdReason = "storage is tested against, and embedded from, the etcd release that Kubernetes " + Kubernetes + " ships with; 3.7 changes the server's packages"

var pinned = []Pin{
	{Module: "go.etcd.io/etcd/api/v3", Version: "v3.6.16", Reason: etcdReason},
	{Module: "go.etcd.io/etcd/client/pkg/v3", Version: "v3.6.16", Reason: etcdReason},
	{Module: "go.etcd.io/etcd/client/v3", Version: "v3.6.16", Reason: etcdReason},
	{Module: "go.etcd.io/etcd/etcdutl/v3", Version: "v3.6.16", Reason: etcdReason},
	{Module: "go.etcd.io/etcd/pkg/v3", Version: "v3.6.16", Reason: etcdReason},
	{Module: "go.etcd.io/etcd/server/v3", Version: "v3.6.16", Reason: etcdReason},
	{Module: "go.etcd.io/bbolt", Version: "v1.4.3", Reason: "the file format of the embedded etcd's data is the one of etcd 3.6"},
	{Module: "go.etcd.io/raft/v3", Version: "v3.6.0", Reason: "etcd 3.6 is released with this raft"},
}

// Requirement is a line of a require block.
type Requirement struct{ Path, Version string }

// Replacement is a line of a replace block.
type Replacement struct{ Old, New Requirement }

// Module is a go.mod of the workspace.
type Module struct {
	// Dir is relative to the root of the workspace, with forward slashes.
	Dir     string
	Path    string
	Go      string
	Require []Requirement
	Replace []Replacement
}

// Workspace has the versions in the go.mod files, and those that the go command selects.
type Workspace struct {
	Root    string
	Go      string // the go line of go.work
	Modules []Module
	// Staging are the modules that k8s.io/kubernetes requires at v0.0.0.
	Staging []string
	// Selected is the version of every module that the workspace is built with.
	Selected map[string]string
}

// Load reads the workspace at root. It may download k8s.io/kubernetes, which every build
// needs.
func Load(ctx context.Context, root string) (*Workspace, error) {
	w := &Workspace{Root: root}
	var work struct {
		Go  string
		Use []struct{ DiskPath string }
	}
	if err := w.goJSON(ctx, &work, "work", "edit", "-json"); err != nil {
		return nil, err
	}
	w.Go = work.Go
	for _, use := range work.Use {
		m, err := w.readModule(ctx, filepath.ToSlash(filepath.Clean(use.DiskPath)))
		if err != nil {
			return nil, err
		}
		w.Modules = append(w.Modules, m)
	}
	if err := w.readStaging(ctx); err != nil {
		return nil, err
	}
	return w, w.readSelected(ctx)
}

// goMod has the relevant fields of `go mod edit -json`.
type goMod struct {
	Module  Requirement
	Go      string
	Require []Requirement
	Replace []Replacement
}

func (w *Workspace) readModule(ctx context.Context, dir string) (Module, error) {
	var file goMod
	if err := w.goJSON(ctx, &file, "mod", "edit", "-json", filepath.Join(dir, "go.mod")); err != nil {
		return Module{}, err
	}
	return Module{Dir: dir, Path: file.Module.Path, Go: file.Go, Require: file.Require, Replace: file.Replace}, nil
}

// readStaging reads Kubernetes' own go.mod, which replaces each staging module by a
// directory of its source tree.
func (w *Workspace) readStaging(ctx context.Context) error {
	var download struct{ GoMod string }
	if err := w.goJSON(ctx, &download, "mod", "download", "-json", kubernetesModule+"@"+Kubernetes); err != nil {
		return err
	}
	var file goMod
	if err := w.goJSON(ctx, &file, "mod", "edit", "-json", download.GoMod); err != nil {
		return err
	}
	for _, r := range file.Replace {
		if strings.HasPrefix(r.New.Path, "./staging/") {
			w.Staging = append(w.Staging, r.Old.Path)
		}
	}
	if len(w.Staging) == 0 {
		return fmt.Errorf("read %s@%s: no staging modules", kubernetesModule, Kubernetes)
	}
	slices.Sort(w.Staging)
	return nil
}

func (w *Workspace) readSelected(ctx context.Context) error {
	out, err := w.goCommand(ctx, "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")
	if err != nil {
		return err
	}
	w.Selected = map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			w.Selected[path] = version
		}
	}
	return nil
}

func (w *Workspace) goJSON(ctx context.Context, into any, args ...string) error {
	out, err := w.goCommand(ctx, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("read the output of go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// stagingVersion returns the version of the staging modules for Kubernetes v1.x.y.
func stagingVersion() string { return "v0" + strings.TrimPrefix(Kubernetes, "v1") }

// wanted returns the versions that a requirement must have, regardless of what the
// workspace selects.
func (w *Workspace) wanted() map[string]string {
	wanted := maps.Clone(w.Selected)
	for _, p := range pinned {
		wanted[p.Module] = p.Version
	}
	wanted[kubernetesModule] = Kubernetes
	for _, path := range w.Staging {
		delete(wanted, path) // replaced, so the requirement has no effect
	}
	for _, m := range w.Modules {
		delete(wanted, m.Path)
	}
	return wanted
}

// Problems lists all disagreements, each in one line; nil means that all modules agree.
func (w *Workspace) Problems() []string {
	var problems []string
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, p := range pinned {
		if got := w.Selected[p.Module]; got != p.Version {
			add("the workspace selects %s %s, not %s: %s", p.Module, got, p.Version, p.Reason)
		}
	}
	wanted := w.wanted()
	for _, m := range w.Modules {
		if m.Go != w.Go {
			add("%s/go.mod: go %s, but go.work says %s", m.Dir, m.Go, w.Go)
		}
		required := map[string]string{}
		for _, r := range m.Require {
			required[r.Path] = r.Version
			if want, ok := wanted[r.Path]; ok && want != r.Version {
				add("%s/go.mod: requires %s %s, want %s", m.Dir, r.Path, r.Version, want)
			}
		}
		if _, ok := required[kubernetesModule]; !ok {
			add("%s/go.mod: does not require %s %s, which pins the staging modules", m.Dir, kubernetesModule, Kubernetes)
		}
		for _, change := range w.replacements(m) {
			add("%s/go.mod: %s", m.Dir, change.problem)
		}
	}
	return problems
}

// change is an edit of a go.mod, as an argument of `go mod edit`, and the problem that it
// solves.
type change struct{ edit, problem string }

// replacements compares the replace block of m with the staging modules.
func (w *Workspace) replacements(m Module) []change {
	var changes []change
	version := stagingVersion()
	have := map[string]Replacement{}
	for _, r := range m.Replace {
		have[r.Old.Path] = r
	}
	for _, path := range w.Staging {
		want := Replacement{Old: Requirement{Path: path}, New: Requirement{Path: path, Version: version}}
		if r, ok := have[path]; !ok || r != want {
			edit := fmt.Sprintf("-replace=%s=%s@%s", path, path, version)
			changes = append(changes, change{edit, fmt.Sprintf("does not replace %s with its %s", path, version)})
		}
	}
	for _, r := range m.Replace {
		if strings.HasPrefix(r.Old.Path, "k8s.io/") && !slices.Contains(w.Staging, r.Old.Path) {
			changes = append(changes, change{"-dropreplace=" + r.Old.Path, fmt.Sprintf("replaces %s, which is no staging module of Kubernetes %s", r.Old.Path, Kubernetes)})
		}
	}
	return changes
}

// Write edits the go.mod files to solve Problems. Selections of the workspace may require a
// second run, and checksums a `go mod tidy`.
func (w *Workspace) Write(ctx context.Context) error {
	wanted := w.wanted()
	for _, m := range w.Modules {
		args := []string{"mod", "edit", "-go=" + w.Go, "-require=" + kubernetesModule + "@" + Kubernetes}
		for _, r := range m.Require {
			if want, ok := wanted[r.Path]; ok && want != r.Version {
				args = append(args, "-require="+r.Path+"@"+want)
			}
		}
		for _, change := range w.replacements(m) {
			args = append(args, change.edit)
		}
		if _, err := w.goCommand(ctx, append(args, filepath.Join(m.Dir, "go.mod"))...); err != nil {
			return err
		}
	}
	return nil
}

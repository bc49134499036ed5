package verify

import (
	"path"
	"slices"
	"strings"
	"testing"

	"triune.dev/shared/process/release"
	"triune.dev/tests/pins"
	"triune.dev/tests/tools"
)

func TestModulesAgreeOnVersions(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	workspace, err := pins.Load(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range workspace.Problems() {
		t.Error(problem)
	}
	if release.GitVersion != pins.Kubernetes {
		t.Errorf("package release says %s, the modules are pinned to %s", release.GitVersion, pins.Kubernetes)
	}
	var used []string
	for _, m := range workspace.Modules {
		used = append(used, m.Dir)
		if want := prefix + m.Dir; m.Path != want {
			t.Errorf("%s/go.mod: module %s, want %s", m.Dir, m.Path, want)
		}
	}
	if slices.Sort(used); !slices.Equal(used, slices.Sorted(slices.Values(modules))) {
		t.Errorf("go.work uses %v, the modules are %v", used, modules)
	}
	for _, name := range list(t, "go.mod") {
		dir := path.Dir(name)
		if !slices.Contains(used, dir) && !strings.HasPrefix(dir, "tests/tools/") {
			t.Errorf("%s is neither in go.work nor a tool with versions of its own", name)
		}
	}
}

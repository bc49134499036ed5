package pins

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// good returns a workspace of one module without problems.
func good() *Workspace {
	w := &Workspace{
		Go:       "1.26.0",
		Staging:  []string{"k8s.io/api", "k8s.io/client-go"},
		Selected: map[string]string{"example.com/a": "v1.2.0", kubernetesModule: Kubernetes, "k8s.io/api": "v0.0.0"},
	}
	for _, p := range pinned {
		w.Selected[p.Module] = p.Version
	}
	staging := stagingVersion()
	w.Modules = []Module{{
		Dir: "shared", Path: "triune.dev/shared", Go: "1.26.0",
		Require: []Requirement{{kubernetesModule, Kubernetes}, {"example.com/a", "v1.2.0"}, {"k8s.io/api", staging}},
		Replace: []Replacement{
			{Requirement{Path: "k8s.io/api"}, Requirement{"k8s.io/api", staging}},
			{Requirement{Path: "k8s.io/client-go"}, Requirement{"k8s.io/client-go", staging}},
			{Requirement{Path: "triune.dev/other"}, Requirement{Path: "../other"}},
		},
	}}
	return w
}

func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Workspace, *Module)
		want   []string // a part of each problem
	}{
		"none":                       {func(*Workspace, *Module) {}, nil},
		"another version of Go":      {func(_ *Workspace, m *Module) { m.Go = "1.25.0" }, []string{"go 1.25.0, but go.work says 1.26.0"}},
		"another Kubernetes":         {func(_ *Workspace, m *Module) { m.Require[0].Version = "v1.36.2" }, []string{"requires k8s.io/kubernetes v1.36.2, want " + Kubernetes}},
		"no Kubernetes":              {func(_ *Workspace, m *Module) { m.Require = m.Require[1:] }, []string{"does not require k8s.io/kubernetes"}},
		"not what is built with":     {func(_ *Workspace, m *Module) { m.Require[1].Version = "v1.1.0" }, []string{"requires example.com/a v1.1.0, want v1.2.0"}},
		"a missing replacement":      {func(_ *Workspace, m *Module) { m.Replace = m.Replace[1:] }, []string{"does not replace k8s.io/api"}},
		"an old replacement":         {func(_ *Workspace, m *Module) { m.Replace[1].New.Version = "v0.36.2" }, []string{"does not replace k8s.io/client-go with its " + stagingVersion()}},
		"an unknown replacement":     {func(_ *Workspace, m *Module) { m.Replace[2].Old.Path = "k8s.io/gone" }, []string{"replaces k8s.io/gone"}},
		"a pinned version that rose": {func(w *Workspace, _ *Module) { w.Selected["go.etcd.io/bbolt"] = "v1.5.0" }, []string{"selects go.etcd.io/bbolt v1.5.0, not v1.4.3"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := good()
			c.change(w, &w.Modules[0])
			got := w.Problems()
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %d problems", got, len(c.want))
			}
			for i, part := range c.want {
				if !strings.Contains(got[i], part) {
					t.Errorf("got %q, want %q in it", got[i], part)
				}
			}
		})
	}
}

// Requirements must have the selected version, except for pinned and replaced ones.
func TestWantedVersions(t *testing.T) {
	w := good()
	w.Selected["go.etcd.io/bbolt"] = "v1.5.0"
	got := w.wanted()
	want := map[string]string{"example.com/a": "v1.2.0", kubernetesModule: Kubernetes}
	for _, p := range pinned {
		want[p.Module] = p.Version
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\nof %v", diff, slices.Sorted(maps.Keys(w.Selected)))
	}
}

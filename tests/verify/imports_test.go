package verify

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestImportsRunOneWay(t *testing.T) {
	packages, err := ours()
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 40 {
		t.Fatalf("go list found %d packages of ours", len(packages))
	}
	for _, b := range bans {
		if b.reason == "" {
			t.Errorf("the ban on %v has no reason", b.to)
		}
		for _, p := range packages {
			for _, line := range b.broken(p) {
				t.Error(line)
			}
		}
	}
}

// Every exception is still needed.
func TestKubernetesImportersNeedIt(t *testing.T) {
	packages, err := ours()
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range kubernetesImporters {
		needs := false
		for _, p := range packages {
			for _, i := range p.Imports {
				needs = needs || matches(pattern, p.ImportPath) && matches("k8s.io/kubernetes/...", i)
			}
		}
		if !needs {
			t.Errorf("%s imports nothing of k8s.io/kubernetes: take it off the list", pattern)
		}
	}
	text := read(t, "ARCHITECTURE.md")
	for _, pattern := range kubernetesImporters {
		name := strings.TrimSuffix(strings.TrimPrefix(pattern, prefix), "/...")
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("ARCHITECTURE.md does not say what %s needs k8s.io/kubernetes for", name)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"k8s.io/kubernetes/...", "k8s.io/kubernetes", true},
		{"k8s.io/kubernetes/...", "k8s.io/kubernetes/pkg/features", true},
		{"k8s.io/kubernetes/...", "k8s.io/kubernetesque", false},
		{"k8s.io/kubernetes/pkg/registry/*/rest/...", "k8s.io/kubernetes/pkg/registry/core/rest", true},
		{"k8s.io/kubernetes/pkg/registry/*/rest/...", "k8s.io/kubernetes/pkg/registry/core/pod", false},
		{"k8s.io/kubernetes/pkg/registry/*/rest/...", "k8s.io/kubernetes/pkg/registry", false},
		{"net/http/...", "net/http/httputil", true},
		{"net/http/...", "net", false},
		{"triune.dev/...", "triune.dev/shared/server/resources", true},
		{"log", "log", true},
		{"log", "log/slog", false},
	} {
		if got := matches(c.pattern, c.path); got != c.want {
			t.Errorf("matches(%q, %q) = %t", c.pattern, c.path, got)
		}
	}
}

func TestBanFindsWhatBreaksIt(t *testing.T) {
	b := ban{from: []string{allShared}, but: []string{prefix + "shared/b"}, to: []string{"x/..."}, allowed: []string{"x/ok"}, reason: "of a test"}
	direct := pkg{ImportPath: prefix + "shared/a", Imports: []string{"x/y", "x/ok", "z"}, Deps: []string{"x/deep", "x/y"}, TestImports: []string{"x/t"}}
	linked, tests := b, b
	linked.linked, tests.tests = true, true
	for name, c := range map[string]struct {
		ban  ban
		pkg  pkg
		want []string
	}{
		"direct":    {b, direct, []string{"triune.dev/shared/a imports x/y: of a test"}},
		"linked":    {linked, direct, []string{"triune.dev/shared/a links x/deep: of a test", "triune.dev/shared/a links x/y: of a test"}},
		"tests":     {tests, direct, []string{"triune.dev/shared/a imports x/t: of a test", "triune.dev/shared/a imports x/y: of a test"}},
		"exempt":    {b, pkg{ImportPath: prefix + "shared/b", Imports: []string{"x/y"}}, nil},
		"not bound": {b, pkg{ImportPath: prefix + "services/core", Imports: []string{"x/y"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.ban.broken(c.pkg)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

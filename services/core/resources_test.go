package core

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/server/resources"
)

// versions returns all group-versions of the table.
func (c *cluster) versions() []*resources.GroupVersion {
	var all []*resources.GroupVersion
	for _, root := range c.server.Table().Roots() {
		version, _ := c.server.Table().Version(root)
		all = append(all, version)
	}
	return all
}

// testResources compares all resources and verbs with a golden file, so that a review shows
// changes. go test -rewrite writes the file.
func (c *cluster) testResources(t *testing.T) {
	const file = "testdata/resources.txt"
	var lines strings.Builder
	for _, version := range c.versions() {
		for _, resource := range version.Resources() {
			scope := "cluster"
			if resource.Namespaced {
				scope = "namespaced"
			}
			lines.WriteString(strings.Join([]string{
				version.GroupVersion.String(), resource.Key(), resource.Discovery.Kind, scope, strings.Join(resource.Discovery.Verbs, ","),
			}, " ") + "\n")
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(lines.String(), "\n")); diff != "" {
		t.Errorf("resources differ from %s (-want +got):\n%s", file, diff)
	}
}

// ofOtherTiers are the stable group-versions of other tiers.
var ofOtherTiers = []string{"apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1"}

// testDiscovery compares core's discovery documents with those in the source of Kubernetes,
// which are made with all alpha and beta features.
func (c *cluster) testDiscovery(t *testing.T) {
	dir := filepath.Join(moduleDir(t, "k8s.io/kubernetes"), "api", "discovery")
	files, err := filepath.Glob(filepath.Join(dir, "*__*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents in %s: %v", dir, err)
	}
	served := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var want metav1.APIResourceList
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if want.GroupVersion == "" || strings.Contains(want.GroupVersion, "alpha") || strings.Contains(want.GroupVersion, "beta") || slices.Contains(ofOtherTiers, want.GroupVersion) {
			continue
		}
		root := "/apis/" + want.GroupVersion
		if !strings.Contains(want.GroupVersion, "/") {
			root = "/api/" + want.GroupVersion
		}
		served[root] = true
		code, _, body := c.get(t, root)
		if code != http.StatusOK {
			t.Errorf("%s: %d %s", root, code, body)
			continue
		}
		var got metav1.APIResourceList
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		byName := cmpopts.SortSlices(func(a, b metav1.APIResource) bool { return a.Name < b.Name })
		if diff := cmp.Diff(want.APIResources, got.APIResources, byName, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-Kubernetes +core):\n%s", root, diff)
		}
	}
	for _, root := range c.server.Table().Roots() {
		if !served[root] {
			t.Errorf("%s is served and is not a stable group-version of Kubernetes", root)
		}
	}
	if len(served) < 20 {
		t.Errorf("compared only %d group-versions", len(served))
	}
}

// moduleDir returns the directory of the source of a module.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

// testUnknownPaths checks that core without a next tier answers 404.
func (c *cluster) testUnknownPaths(t *testing.T) {
	for _, path := range []string{"/nowhere", "/apis/example.com/v1/things", "/api/v1/gizmos", "/api/v1/namespaces/default/pods/a%2Fb"} {
		code, _, body := c.get(t, path)
		var status metav1.Status
		if err := json.Unmarshal([]byte(body), &status); err != nil || code != http.StatusNotFound || status.Reason != metav1.StatusReasonNotFound {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

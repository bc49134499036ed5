package e2e

import (
	"strings"
	"testing"
)

func TestKubectlApply(t *testing.T) {
	c := server(t)
	k := newKubectl(t, c, newNamespace(t, c))
	file := writeFile(t, "web.yaml", web)

	t.Run("client side", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{"deployment.apps/web created"}, "apply", "-f", file)
		k.says([]string{"deployment.apps/web unchanged"}, "apply", "-f", file)
		changed := strings.Replace(web, "replicas: 2", "replicas: 3", 1)
		changed = strings.Replace(changed, "labels: {app: web}\nspec", "labels: {app: web, new: label}\nspec", 1)
		k.stdin(changed).says([]string{"deployment.apps/web configured"}, "apply", "-f", "-")
		if got := k.run("get", "-f", file, "-o", "jsonpath={.spec.replicas} {.metadata.labels.new}"); got != "3 label" {
			t.Errorf("after apply: %q", got)
		}
		// Apply removes fields that are no longer in the manifest.
		k.run("apply", "-f", file)
		if got := k.run("get", "-f", file, "-o", "jsonpath={.spec.replicas} {.metadata.labels.new}"); got != "2 " {
			t.Errorf("after apply without the label: %q", got)
		}
		k.says([]string{"replicas: 2"}, "apply", "view-last-applied", "-f", file, "-o", "yaml")
	})
	t.Run("diff", func(t *testing.T) {
		k := k.of(t)
		if o := k.try("diff", "-f", file); o.code != 0 {
			t.Errorf("diff of the same: exit status %d\n%s%s", o.code, o.stdout, o.stderr)
		}
		o := k.stdin(strings.Replace(web, "web:1", "web:9", 1)).try("diff", "-f", "-")
		if o.code != 1 {
			t.Errorf("diff of another image: exit status %d, want 1\n%s", o.code, o.stderr)
		}
		expectFragments(t, "diff", o.stdout, []string{"-      - image: registry.example/web:1", "+      - image: registry.example/web:9"})
	})
	t.Run("prune", func(t *testing.T) {
		k := k.of(t)
		two := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: keep, labels: {set: pruned}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: drop, labels: {set: pruned}}\n"
		k.stdin(two).run("apply", "-f", "-")
		one, _, _ := strings.Cut(two, "---\n")
		k.stdin(one).says([]string{"configmap/keep unchanged", "configmap/drop pruned"}, "apply", "--prune", "-l", "set=pruned", "--prune-allowlist=core/v1/ConfigMap", "-f", "-")
	})
	t.Run("server side", func(t *testing.T) {
		k := k.of(t)
		mine := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {a: mine}\n"
		k.stdin(mine).says([]string{"serverside-applied"}, "apply", "--server-side", "--field-manager=me", "-f", "-")
		theirs := strings.Replace(mine, "data: {a: mine}", "data: {a: theirs, b: theirs}", 1)
		stderr := k.stdin(theirs).fails("Apply failed with 1 conflict", "apply", "--server-side", "--field-manager=you", "-f", "-")
		expectFragments(t, "conflict", stderr, []string{`conflict with "me": .data.a`})
		if got := k.run("get", "configmap/shared", "-o", "jsonpath={.data}"); got != `{"a":"mine"}` {
			t.Errorf("after the conflict: %s", got)
		}
		k.stdin(theirs).run("apply", "--server-side", "--field-manager=you", "--force-conflicts", "-f", "-")
		if got := k.run("get", "configmap/shared", "-o", "jsonpath={.data}"); got != `{"a":"theirs","b":"theirs"}` {
			t.Errorf("after --force-conflicts: %s", got)
		}
		managers := k.run("get", "configmap/shared", "--show-managed-fields", "-o", `jsonpath={range .metadata.managedFields[*]}{.manager}/{.operation} {end}`)
		if managers != "you/Apply " {
			t.Errorf("managers after --force-conflicts: %q, want only you/Apply", managers)
		}
		// A field with a single owner is removed when that manager no longer applies it.
		k.stdin(strings.Replace(theirs, ", b: theirs", "", 1)).run("apply", "--server-side", "--field-manager=you", "-f", "-")
		if got := k.run("get", "configmap/shared", "-o", "jsonpath={.data}"); got != `{"a":"theirs"}` {
			t.Errorf("after an apply without b: %s", got)
		}
	})
	t.Run("from client side to server side", func(t *testing.T) {
		k := k.of(t)
		k.run("apply", "-f", file)
		k.run("apply", "--server-side", "-f", file)
		o := k.stdin(strings.Replace(web, "web:1", "web:3", 1)).run("apply", "--server-side", "-f", "-")
		if !strings.Contains(o, "serverside-applied") {
			t.Error(o)
		}
		k.says([]string{"deleted"}, "delete", "-f", file)
	})
	t.Run("kustomize", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "kustomization.yaml", "namePrefix: pre-\nresources: [cm.yaml]\ngeneratorOptions: {disableNameSuffixHash: true}\nconfigMapGenerator:\n- name: gen\n  literals: [k=v]\n")
		write(t, dir, "cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\n")
		k := k.of(t)
		k.says([]string{"configmap/pre-plain created", "configmap/pre-gen created"}, "apply", "-k", dir)
		k.says([]string{"deleted"}, "delete", "-k", dir)
	})
}

package e2e

import (
	"strings"
	"testing"

	"triune.dev/tests/cli"
)

func TestKubectlApply(t *testing.T) {
	c := server(t)
	k := newKubectl(t, c, newNamespace(t, c))
	file := writeFile(t, "web.yaml", web)

	t.Run("client side", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"deployment.apps/web created"}, "apply", "-f", file)
		k.Says([]string{"deployment.apps/web unchanged"}, "apply", "-f", file)
		changed := strings.Replace(web, "replicas: 2", "replicas: 3", 1)
		changed = strings.Replace(changed, "labels: {app: web}\nspec", "labels: {app: web, new: label}\nspec", 1)
		k.Stdin(changed).Says([]string{"deployment.apps/web configured"}, "apply", "-f", "-")
		if got := k.Run("get", "-f", file, "-o", "jsonpath={.spec.replicas} {.metadata.labels.new}"); got != "3 label" {
			t.Errorf("after apply: %q", got)
		}
		// Apply removes fields that are no longer in the manifest.
		k.Run("apply", "-f", file)
		if got := k.Run("get", "-f", file, "-o", "jsonpath={.spec.replicas} {.metadata.labels.new}"); got != "2 " {
			t.Errorf("after apply without the label: %q", got)
		}
		k.Says([]string{"replicas: 2"}, "apply", "view-last-applied", "-f", file, "-o", "yaml")
	})
	t.Run("diff", func(t *testing.T) {
		k := k.Of(t)
		if o := k.Try("diff", "-f", file); o.Code != 0 {
			t.Errorf("diff of the same: exit status %d\n%s%s", o.Code, o.Stdout, o.Stderr)
		}
		o := k.Stdin(strings.Replace(web, "web:1", "web:9", 1)).Try("diff", "-f", "-")
		if o.Code != 1 {
			t.Errorf("diff of another image: exit status %d, want 1\n%s", o.Code, o.Stderr)
		}
		cli.ExpectFragments(t, "diff", o.Stdout, []string{"-      - image: registry.example/web:1", "+      - image: registry.example/web:9"})
	})
	t.Run("prune", func(t *testing.T) {
		k := k.Of(t)
		two := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: keep, labels: {set: pruned}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: drop, labels: {set: pruned}}\n"
		k.Stdin(two).Run("apply", "-f", "-")
		one, _, _ := strings.Cut(two, "---\n")
		k.Stdin(one).Says([]string{"configmap/keep unchanged", "configmap/drop pruned"}, "apply", "--prune", "-l", "set=pruned", "--prune-allowlist=core/v1/ConfigMap", "-f", "-")
	})
	t.Run("server side", func(t *testing.T) {
		k := k.Of(t)
		mine := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {a: mine}\n"
		k.Stdin(mine).Says([]string{"serverside-applied"}, "apply", "--server-side", "--field-manager=me", "-f", "-")
		theirs := strings.Replace(mine, "data: {a: mine}", "data: {a: theirs, b: theirs}", 1)
		stderr := k.Stdin(theirs).Fails("Apply failed with 1 conflict", "apply", "--server-side", "--field-manager=you", "-f", "-")
		cli.ExpectFragments(t, "conflict", stderr, []string{`conflict with "me": .data.a`})
		if got := k.Run("get", "configmap/shared", "-o", "jsonpath={.data}"); got != `{"a":"mine"}` {
			t.Errorf("after the conflict: %s", got)
		}
		k.Stdin(theirs).Run("apply", "--server-side", "--field-manager=you", "--force-conflicts", "-f", "-")
		if got := k.Run("get", "configmap/shared", "-o", "jsonpath={.data}"); got != `{"a":"theirs","b":"theirs"}` {
			t.Errorf("after --force-conflicts: %s", got)
		}
		managers := k.Run("get", "configmap/shared", "--show-managed-fields", "-o", `jsonpath={range .metadata.managedFields[*]}{.manager}/{.operation} {end}`)
		if managers != "you/Apply " {
			t.Errorf("managers after --force-conflicts: %q, want only you/Apply", managers)
		}
		// A field with a single owner is removed when that manager no longer applies it.
		k.Stdin(strings.Replace(theirs, ", b: theirs", "", 1)).Run("apply", "--server-side", "--field-manager=you", "-f", "-")
		if got := k.Run("get", "configmap/shared", "-o", "jsonpath={.data}"); got != `{"a":"theirs"}` {
			t.Errorf("after an apply without b: %s", got)
		}
	})
	t.Run("from client side to server side", func(t *testing.T) {
		k := k.Of(t)
		k.Run("apply", "-f", file)
		k.Run("apply", "--server-side", "-f", file)
		o := k.Stdin(strings.Replace(web, "web:1", "web:3", 1)).Run("apply", "--server-side", "-f", "-")
		if !strings.Contains(o, "serverside-applied") {
			t.Error(o)
		}
		k.Says([]string{"deleted"}, "delete", "-f", file)
	})
	t.Run("kustomize", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "kustomization.yaml", "namePrefix: pre-\nresources: [cm.yaml]\ngeneratorOptions: {disableNameSuffixHash: true}\nconfigMapGenerator:\n- name: gen\n  literals: [k=v]\n")
		write(t, dir, "cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\n")
		k := k.Of(t)
		k.Says([]string{"configmap/pre-plain created", "configmap/pre-gen created"}, "apply", "-k", dir)
		k.Says([]string{"deleted"}, "delete", "-k", dir)
	})
}

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"triune.dev/tests/tools"
)

// TestGatewayAPI installs the CRDs of Gateway API, which have large schemas, validation
// rules and an admission policy, and creates the project's own examples. Both are read from
// its module.
func TestGatewayAPI(t *testing.T) {
	full(t)
	c := server(t)
	dir, err := tools.Projects["gateway-api"].Dir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := newKubectl(t, c, "")
	definitions := filepath.Join(dir, "config", "crd", "standard")
	examples := filepath.Join(dir, "examples", "standard")

	out := k.Run("apply", "--server-side", "-f", definitions)
	if n := strings.Count(out, "customresourcedefinition.apiextensions.k8s.io/"); n < 8 {
		t.Fatalf("only %d definitions:\n%s", n, out)
	}
	t.Cleanup(func() { k.Run("delete", "--ignore-not-found", "-f", definitions) })
	var names []string
	for _, line := range strings.Fields(out) {
		if name, ok := strings.CutPrefix(line, "customresourcedefinition.apiextensions.k8s.io/"); ok {
			names = append(names, "crd/"+name)
		}
	}
	k.Run(append([]string{"wait", "--for=condition=Established", "--timeout=60s"}, names...)...)

	t.Run("examples", func(t *testing.T) {
		k := k.Of(t)
		out := k.Run("apply", "-R", "-f", examples)
		if n := strings.Count(out, " created\n"); n < 60 {
			t.Errorf("only %d objects were created:\n%s", n, out)
		}
		k.Says([]string{"NAMESPACE", "HOSTNAMES"}, "get", "httproutes", "-A")
		k.Says([]string{"CLASS", "PROGRAMMED"}, "get", "gateways", "-A")
		k.Says([]string{"CONTROLLER"}, "get", "gc")
		k.Says([]string{"API Version:  gateway.networking.k8s.io/v1", "Parent Refs:"}, "describe", "httproutes", "-A")
		again := k.Run("apply", "-R", "-f", examples)
		if strings.Contains(again, " created\n") {
			t.Errorf("a second apply created objects:\n%s", again)
		}
	})
	t.Run("explain", func(t *testing.T) {
		k.Of(t).Says([]string{"GROUP:      gateway.networking.k8s.io", "backendRefs"}, "explain", "httproute.spec.rules")
	})
	t.Run("validation", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: bad, namespace: default}\nspec: {hostnames: [\"Not A Host\"]}\n").Fails("spec.hostnames[0]", "apply", "-f", "-")
		k.Stdin("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: bad, namespace: default}\nspec: {gatewayClassName: x, listeners: [{name: a, port: 80, protocol: HTTP},{name: a, port: 80, protocol: HTTP}]}\n").Fails("Listener name must be unique", "apply", "-f", "-", "--server-side=false", "--validate=false")
		k.Stdin("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: bad}\nspec: {controllerName: x}\n").Fails("spec.controllerName", "apply", "-f", "-")
		k.Stdin("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: bad}\nspec: {controllerName: a.b/c, nothing: 1}\n").Fails(`unknown field "spec.nothing"`, "apply", "-f", "-")
	})
	t.Run("the policy against old definitions", func(t *testing.T) {
		k := k.Of(t)
		k.Fails("Installing experimental CRDs on top of standard channel CRDs is prohibited", "annotate", "--overwrite", "crd/httproutes.gateway.networking.k8s.io", "gateway.networking.k8s.io/channel=experimental")
	})
	t.Run("deleting a definition deletes its objects", func(t *testing.T) {
		k := k.Of(t)
		k.Run("delete", "crd/httproutes.gateway.networking.k8s.io", "--timeout=60s")
		k.Fails("the server doesn't have a resource type", "get", "httproutes.gateway.networking.k8s.io", "-A")
		k.Says([]string{"CLASS"}, "get", "gateways", "-A")
	})
}

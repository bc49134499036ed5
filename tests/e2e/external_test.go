package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
)

// beyondExternal lists calls that tests can only make with servers of their own, and why an
// external server does not allow them.
var beyondExternal = map[string]string{
	"cluster.Run":       "it starts servers of its own",
	"cluster.Start":     "it starts servers of its own",
	"CommandLine":       "it starts programs with flags that are wrong",
	"Restart":           "it stops and starts tiers of the server",
	"startControlPlane": "controllers sign with the private keys of the server",
	"startWebhook":      "the server has to reach a webhook on the loopback of this machine",
	"StartSampleServer": "the server has to reach an extension server on the loopback of this machine",
}

// leftOut lists the tests that are skipped with an external server, each with the call that
// is the reason. TestLeftOutOfExternal keeps the list minimal.
var leftOut = map[string]string{
	"TestBadStart":                         "CommandLine",
	"TestAnonymousIsCores":                 "Restart",
	"TestContradiction":                    "cluster.Run",
	"TestControllers":                      "startControlPlane",
	"TestEncryptedOnItsWay":                "cluster.Run",
	"TestEncryptionAtRest":                 "cluster.Run",
	"TestEndpointsOfAggregators":           "cluster.Run",
	"TestEtcdRoles":                        "Restart",
	"TestHalfDeadEtcd":                     "cluster.Run",
	"TestGenericControllers":               "cluster.Run",
	"TestOneRunsTheControllers":            "cluster.Run",
	"TestHelm":                             "startControlPlane",
	"TestInspect":                          "cluster.Run",
	"TestInformersOutliveRestarts":         "Restart",
	"TestKMSOutage":                        "cluster.Run",
	"TestKeyRotation":                      "Restart",
	"TestMoveIn":                           "cluster.Run",
	"TestMoveOut":                          "cluster.Run",
	"TestNamespaceWaitsForCustomResources": "cluster.Run",
	"TestInsecureLoopbackPort":             "cluster.Run",
	"TestOutage":                           "cluster.Run",
	"TestQuietStart":                       "cluster.Start",
	"TestRotationUnderLoad":                "cluster.Run",
	"TestSampleAPIServer":                  "StartSampleServer",
	"TestStoredBytes":                      "cluster.Run",
	"TestStolenKeysOfTiers":                "cluster.Run",
	"TestTiersDecideAlike":                 "cluster.Run",
	"TestWebhookThatAnswers401":            "startWebhook",
	"TestWebhooksOfServices":               "startWebhook",
}

// needs skips the test if it needs more than an external server allows and the target is
// one.
func needs(t *testing.T) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	if call, ok := leftOut[test]; ok && cluster.Topology(*target) == cluster.External {
		t.Skipf("not of an external server: %s", beyondExternal[call])
	}
}

// tokenUser is a user without permissions.
type tokenUser struct{ name, group, token string }

// newTokenUser returns alice of the token file, or a new ServiceAccount if the target has
// no such file. k writes to a namespace of the test.
func newTokenUser(t *testing.T, c *cluster.Cluster, k cli.Command) tokenUser {
	t.Helper()
	if c.Tokens != "" {
		return tokenUser{"alice", "testers", "alice-token"}
	}
	k.Run("create", "serviceaccount", "somebody")
	namespace := k.Run("get", "serviceaccount", "somebody", "-o", "jsonpath={.metadata.namespace}")
	return tokenUser{
		name:  "system:serviceaccount:" + namespace + ":somebody",
		group: "system:serviceaccounts:" + namespace,
		token: strings.TrimSpace(k.Run("create", "token", "somebody", "--duration=30m")),
	}
}

// TestLeftOutOfExternal derives leftOut from the code: a test is left out if and only if it
// calls a function of beyondExternal, directly or through functions of this package.
func TestLeftOutOfExternal(t *testing.T) {
	calls := callsOfPackage(t)
	want := map[string]string{}
	for name := range calls {
		if !strings.HasPrefix(name, "Test") || name == "TestMain" {
			continue
		}
		for _, call := range slices.Sorted(maps.Keys(reached(calls, name))) {
			if _, beyond := beyondExternal[call]; beyond {
				want[name] = call
				break
			}
		}
	}
	if diff := cmp.Diff(want, leftOut); diff != "" {
		t.Errorf("leftOut (-what the code calls +the list):\n%s", diff)
	}
	for name := range leftOut {
		if !slices.ContainsFunc([]string{"needs", "full", "server"}, func(asks string) bool { return slices.Contains(calls[name], asks) }) {
			t.Errorf("%s is left out, but does not call needs", name)
		}
	}
	used := map[string]bool{}
	for _, call := range leftOut {
		used[call] = true
	}
	for call := range beyondExternal {
		if !used[call] {
			t.Errorf("no test is left out for %s", call)
		}
	}
}

// callsOfPackage maps each function of this package to its calls: the names of functions
// and methods, qualified if the package is cluster.
func callsOfPackage(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string][]string{}
	for _, name := range files {
		if name == "main_test.go" { // calls for all tests are not those of one
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := function.Name.Name // functions and methods of the same name count as one
			ast.Inspect(function, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch callee := call.Fun.(type) {
				case *ast.Ident:
					calls[name] = append(calls[name], callee.Name)
				case *ast.SelectorExpr:
					called := callee.Sel.Name
					if of, ok := callee.X.(*ast.Ident); ok && of.Name == "cluster" {
						called = "cluster." + called
					}
					calls[name] = append(calls[name], called)
				}
				return true
			})
		}
	}
	return calls
}

// reached returns all calls of a function, direct and through functions of the package.
func reached(calls map[string][]string, from string) map[string]bool {
	all := map[string]bool{}
	var visit func(string)
	visit = func(name string) {
		for _, call := range calls[name] {
			if !all[call] {
				all[call] = true
				visit(call)
			}
		}
	}
	visit(from)
	return all
}

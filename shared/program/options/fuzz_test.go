package options

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// audited has requests of each kind that a policy rule can distinguish.
var audited = func() []authorizer.Attributes {
	var all []authorizer.Attributes
	for _, u := range []user.Info{
		&user.DefaultInfo{Name: "system:kube-controller-manager"}, &user.DefaultInfo{Name: "alice", Groups: []string{"system:unauthenticated"}},
	} {
		for _, verb := range []string{"get", "list", "create"} {
			all = append(all,
				authorizer.AttributesRecord{User: u, Verb: verb, Path: "/openapi/v3"},
				authorizer.AttributesRecord{User: u, Verb: verb, Path: "/version"},
				authorizer.AttributesRecord{User: u, Verb: verb, APIVersion: "v1", Resource: "secrets", Namespace: "default", Name: "a", ResourceRequest: true},
				authorizer.AttributesRecord{User: u, Verb: verb, APIGroup: "apps", APIVersion: "v1", Resource: "deployments", Subresource: "scale", Namespace: "a", ResourceRequest: true},
				authorizer.AttributesRecord{User: u, Verb: verb, APIGroup: "example.com", APIVersion: "v1", Resource: "widgets", ResourceRequest: true},
			)
		}
	}
	return all
}()

// evaluate returns the decision of evaluator on each of the audited requests.
func evaluate(evaluator audit.PolicyRuleEvaluator) []audit.RequestAuditConfig {
	var all []audit.RequestAuditConfig
	for _, a := range audited {
		all = append(all, evaluator.EvaluatePolicyRule(a))
	}
	return all
}

// FuzzAuditPolicy checks that a tier accepts an audit policy file if and only if
// kube-apiserver does, and then records the same requests.
func FuzzAuditPolicy(f *testing.F) {
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for _, text := range []string{
		head + "rules: [{level: Metadata}]\n", head + "rules: []\n", head + "omitStages: [RequestReceived]\nrules:\n- {level: None, users: [alice], verbs: [get]}\n- {level: RequestResponse, omitManagedFields: true, resources: [{group: apps, resources: ['*/scale', deployments]}]}\n",
		head + "rules:\n- {level: Request, nonResourceURLs: [/openapi/*, '*'], omitStages: [ResponseComplete]}\n- {level: Metadata, namespaces: [default, ''], resources: [{group: '', resources: [secrets], resourceNames: [a]}]}\n",
		head + "rules: [{level: Loud}]\n", head + "rules: [{level: Metadata, resources: [{}], nonResourceURLs: [x]}]\n", head + "rule: [{level: Metadata}]\nrules: [{level: None, unknown: 1}]\n",
		`{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata","userGroups":["system:unauthenticated"]},{"level":"None"}]}`, "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: Metadata}]\n", "&a [*a]", "\x00", "",
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "policy.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		o := New(Tier{Name: "test"})
		o.Audit.PolicyFile = file
		var generic genericapiserver.Config
		err := o.Audit.ApplyTo(&generic)
		want, refused := policy.LoadPolicyFromBytes(data)
		if (err == nil) != (refused == nil) {
			t.Fatalf("%v, want %v", err, refused)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(evaluate(policy.NewPolicyRuleEvaluator(want)), evaluate(generic.AuditPolicyRuleEvaluator)); diff != "" {
			t.Errorf("%q (-kube-apiserver +tier):\n%s", data, diff)
		}
	})
}

package authz

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"triune.dev/shared/transport/tierclient"
)

func TestTierPermissions(t *testing.T) {
	resource := func(verb, group, resource, subresource string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: group, APIVersion: "v1", Resource: resource, Subresource: subresource, ResourceRequest: true}
	}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	for name, test := range map[string]struct {
		attributes authorizer.AttributesRecord
		want       bool // for the aggregator and extensions
	}{
		"rules":                    {resource("list", "rbac.authorization.k8s.io", "roles", ""), true},
		"parameters of a policy":   {resource("watch", "", "configmaps", ""), true},
		"custom resources":         {resource("get", "example.com", "things", ""), true},
		"a token to be reviewed":   {resource("create", "authentication.k8s.io", "tokenreviews", ""), true},
		"access to be reviewed":    {resource("create", "authorization.k8s.io", "subjectaccessreviews", ""), true},
		"the count of a quota":     {resource("update", "", "resourcequotas", "status"), true},
		"a dangling flow schema":   {resource("patch", "flowcontrol.apiserver.k8s.io", "flowschemas", "status"), true},
		"discovery":                {path("get", "/apis"), true},
		"settings":                 {path("get", "/triune/settings"), true},
		"a Secret":                 {resource("get", "", "secrets", ""), false},
		"Secrets":                  {resource("list", "", "secrets", ""), false},
		"changes of Secrets":       {resource("watch", "", "secrets", ""), false},
		"everything":               {resource("list", "*", "*", ""), false},
		"certificates":             {resource("list", "certificates.k8s.io", "certificatesigningrequests", ""), false},
		"exec in a Pod":            {resource("get", "", "pods", "exec"), false},
		"the log of a Pod":         {resource("get", "", "pods", "log"), false},
		"proxy to a node":          {resource("get", "", "nodes", "proxy"), false},
		"a token":                  {resource("create", "", "serviceaccounts", "token"), false},
		"rules to change":          {resource("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""), false},
		"rules to bind":            {resource("bind", "rbac.authorization.k8s.io", "clusterroles", ""), false},
		"impersonation":            {resource("impersonate", "", "users", ""), false},
		"a quota":                  {resource("update", "", "resourcequotas", ""), false},
		"a certificate to approve": {resource("approve", "certificates.k8s.io", "signers", ""), false},
		"a path to change":         {path("post", "/apis"), false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, tier := range []string{"aggregator", "extensions"} {
				test.attributes.User = tierclient.User(tier)
				if decision, _, err := Tiers().Authorize(t.Context(), test.attributes); err != nil || (decision == authorizer.DecisionAllow) != test.want {
					t.Errorf("%s: decision %v, %v", tier, decision, err)
				}
			}
			for _, other := range []string{"alice", "system:triune", "system:serviceaccount:triune:aggregator"} {
				test.attributes.User = &user.DefaultInfo{Name: other, Groups: []string{user.AllAuthenticated, tierclient.UserPrefix + "aggregator"}}
				if decision, _, err := Tiers().Authorize(t.Context(), test.attributes); err != nil || decision != authorizer.DecisionNoOpinion {
					t.Errorf("%s: decision %v, %v", other, decision, err)
				}
			}
		})
	}
}

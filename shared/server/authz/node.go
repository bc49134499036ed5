package authz

import (
	"context"
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
)

// nodes is the mode Node without its graph. In core that mode tells from the
// pods bound to a node which Secrets, claims and so on the node may read. Core has
// the pods and is asked about these resources, which reach other tiers only by versions
// that nobody serves. What is left for the other tiers is what every node may do: the
// rules of the role system:node.
type nodes struct {
	identifier nodeidentifier.NodeIdentifier
	rules      []rbacv1.PolicyRule
}

func newNodes() nodes {
	return nodes{identifier: nodeidentifier.NewDefaultNodeIdentifier(), rules: bootstrappolicy.NodeRules()}
}

// graphed are the resources about which only the graph can decide (KEP-279 and
// its successors). For them this authorizer has no opinion.
var graphed = map[schema.GroupResource]bool{
	{Resource: "secrets"}:                                              true,
	{Resource: "configmaps"}:                                           true,
	{Resource: "persistentvolumeclaims"}:                               true,
	{Resource: "persistentvolumes"}:                                    true,
	{Resource: "serviceaccounts"}:                                      true,
	{Resource: "nodes"}:                                                true,
	{Resource: "pods"}:                                                 true,
	{Group: "resource.k8s.io", Resource: "resourceclaims"}:             true,
	{Group: "resource.k8s.io", Resource: "resourceslices"}:             true,
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:           true,
	{Group: "storage.k8s.io", Resource: "csinodes"}:                    true,
	{Group: "coordination.k8s.io", Resource: "leases"}:                 true,
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}: true,
}

// Authorize implements authorizer.Authorizer.
func (n nodes) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, isNode := n.identifier.NodeIdentity(a.GetUser())
	switch {
	case !isNode:
		return authorizer.DecisionNoOpinion, "", nil
	case name == "":
		return authorizer.DecisionNoOpinion, "unknown node for user \"" + a.GetUser().GetName() + "\"", nil
	case ofGraph(a):
		return authorizer.DecisionNoOpinion, "what a node may do with " + a.GetResource() + " is decided by core", nil
	case rbac.RulesAllow(a, n.rules...):
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// needsGraph reports whether only core, which has the graph, can decide.
func (n nodes) needsGraph(a authorizer.Attributes) bool {
	name, isNode := n.identifier.NodeIdentity(a.GetUser())
	return isNode && name != "" && ofGraph(a)
}

func ofGraph(a authorizer.Attributes) bool {
	return a.IsResourceRequest() && graphed[schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}]
}

// RulesFor implements authorizer.RuleResolver: a node's permissions cannot be
// enumerated.
func (n nodes) RulesFor(_ context.Context, who user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if _, isNode := n.identifier.NodeIdentity(who); isNode {
		return nil, nil, true, errors.New("the mode Node does not enumerate rules")
	}
	return nil, nil, false, nil
}

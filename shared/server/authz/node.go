package authz

import (
	"context"
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// nodeMode is the mode Node without its graph. In core, the graph of the pods on a node
// decides which Secrets, claims and so on the node may read. Core is asked about these
// resources; requests for them reach other tiers only with versions that no tier serves.
// The other tiers evaluate what every node may do: the rules of the role system:node.
type nodeMode struct {
	identifier nodeidentifier.NodeIdentifier
	rules      []rbacv1.PolicyRule
}

func newNodeMode() nodeMode {
	return nodeMode{identifier: nodeidentifier.NewDefaultNodeIdentifier(), rules: bootstrappolicy.NodeRules()}
}

// graphResources are the resources about which only the graph can decide (KEP-279 and its
// successors). This authorizer has no opinion on them.
var graphResources = map[schema.GroupResource]bool{
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
func (n nodeMode) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, isNode := n.identifier.NodeIdentity(a.GetUser())
	switch {
	case !isNode:
		return authorizer.DecisionNoOpinion, "", nil
	case name == "":
		return authorizer.DecisionNoOpinion, "unknown node for user \"" + a.GetUser().GetName() + "\"", nil
	case isGraphResource(a):
		return authorizer.DecisionNoOpinion, "what a node may do with " + a.GetResource() + " is decided by core", nil
	case rbac.RulesAllow(a, n.rules...):
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// needsGraph reports whether only core, which has the graph, can decide about a request.
func (n nodeMode) needsGraph(a authorizer.Attributes) bool {
	name, isNode := n.identifier.NodeIdentity(a.GetUser())
	return isNode && name != "" && isGraphResource(a)
}

func isGraphResource(a authorizer.Attributes) bool {
	return a.IsResourceRequest() && graphResources[schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}]
}

// RulesFor implements authorizer.RuleResolver. The permissions of a node cannot be
// enumerated.
func (n nodeMode) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if _, isNode := n.identifier.NodeIdentity(u); isNode {
		return nil, nil, true, errors.New("the mode Node does not enumerate rules")
	}
	return nil, nil, false, nil
}

package authz

import (
	"context"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"triune.dev/shared/transport/tierclient"
)

// Tiers returns an authorizer that allows each tier what its work takes, whatever the modes
// are, and has no opinion on anybody else. Nobody can change it by way of the API.
func Tiers() authorizer.Authorizer { return tiers{} }

type tiers struct{}

// Authorize implements authorizer.Authorizer.
func (tiers) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, ok := strings.CutPrefix(a.GetUser().GetName(), tierclient.UserPrefix)
	if ok && (reads(a) || rbac.RulesAllow(a, writes[name]...)) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// reads reports whether a is the reading of objects that every tier may read: all but the
// withheld, because parameters of policies may be of any kind. Subresources, by which one gets
// into a Pod, are none of them. Paths that are no resources tell of the server, not of what
// it stores.
func reads(a authorizer.Attributes) bool {
	if !a.IsResourceRequest() {
		return a.GetVerb() == "get"
	}
	return a.IsReadOnly() && a.GetSubresource() == "" && !withheld(a.GetAPIGroup(), a.GetResource())
}

// withheld are Secrets, and requests for certificates: who has the aggregator's key can be
// whose certificate he knows, see package handover.
func withheld(group, resource string) bool {
	return group == "*" || resource == "*" || group == "" && resource == "secrets" || group == "certificates.k8s.io"
}

// writes are the further rules of each tier.
var writes = map[string][]rbacv1.PolicyRule{
	"aggregator": front,
	"extensions": front,
}

// front are the rules of a tier that asks core about users, counts what it creates against
// quotas, and tells of flow schemas that name no priority level.
var front = []rbacv1.PolicyRule{
	{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}},
	{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}},
	{Verbs: []string{"update"}, APIGroups: []string{""}, Resources: []string{"resourcequotas/status"}},
	{Verbs: []string{"patch"}, APIGroups: []string{"flowcontrol.apiserver.k8s.io"}, Resources: []string{"flowschemas/status"}},
}

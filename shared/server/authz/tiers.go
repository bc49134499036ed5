package authz

import (
	"context"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"triune.dev/shared/server/advertise"
	"triune.dev/shared/transport/tierclient"
)

// Tiers returns an authorizer that allows each tier the requests that it makes in its own
// name, whatever the modes are. It has no opinion on other users, and cannot be changed
// through the API.
func Tiers() authorizer.Authorizer { return tiers{} }

type tiers struct{}

// Authorize implements authorizer.Authorizer.
func (tiers) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, ok := strings.CutPrefix(a.GetUser().GetName(), tierclient.UserPrefix)
	if ok && (isAllowedRead(a) || rbac.RulesAllow(a, writes[name]...)) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// isAllowedRead reports whether a reads objects that every tier may read: all but the
// withheld, because the parameters of policies may be of any kind. Subresources are not
// included, because some give access to Pods. Non-resource paths describe the server, not
// its objects.
func isAllowedRead(a authorizer.Attributes) bool {
	if !a.IsResourceRequest() {
		return a.GetVerb() == "get"
	}
	return a.IsReadOnly() && a.GetSubresource() == "" && !withheld(a.GetAPIGroup(), a.GetResource())
}

// withheld reports whether a resource is, or may include, Secrets or certificate signing
// requests: the holder of the aggregator's key can impersonate the owner of any certificate
// that it knows, see package handover.
func withheld(group, resource string) bool {
	return group == "*" || resource == "*" || group == "" && resource == "secrets" || group == "certificates.k8s.io"
}

// writes are the rules of each tier besides reading. Aggregators also advertise their
// addresses.
var writes = map[string][]rbacv1.PolicyRule{
	"aggregator": append(slices.Clone(frontRules), rbacv1.PolicyRule{Verbs: []string{"put", "delete"}, NonResourceURLs: []string{advertise.Path}}),
	"extensions": frontRules,
}

// frontRules are the rules of a tier that asks core about users, counts created objects
// against quotas, and reports flow schemas without a priority level in their status.
var frontRules = []rbacv1.PolicyRule{
	{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}},
	{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}},
	{Verbs: []string{"update"}, APIGroups: []string{""}, Resources: []string{"resourcequotas/status"}},
	{Verbs: []string{"patch"}, APIGroups: []string{"flowcontrol.apiserver.k8s.io"}, Resources: []string{"flowschemas/status"}},
}

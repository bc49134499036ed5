package authz

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// rbacMode is the mode RBAC, with rules that may be out of date.
type rbacMode struct {
	*rbac.RBACAuthorizer
	cache  *ruleCache
	age    func() time.Duration // nil if the rules are always current
	limits limits
	// hasSynced reports whether all rules have been read.
	hasSynced func() bool
}

func newRBACMode(factory informers.SharedInformerFactory, age func() time.Duration, l limits) rbacMode {
	v1 := factory.Rbac().V1()
	return rbacMode{
		RBACAuthorizer: rbac.New(
			&rbac.RoleGetter{Lister: v1.Roles().Lister()},
			&rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
			&rbac.ClusterRoleGetter{Lister: v1.ClusterRoles().Lister()},
			&rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()},
		),
		cache:     newRuleCache(factory),
		age:       age,
		limits:    l,
		hasSynced: rulesSynced(factory),
	}
}

// limits are the ages beyond which rules grant no writes and no reads. Zero is no limit.
type limits struct{ writes, reads time.Duration }

// expired returns why rules of an age must not grant a request, or "" if they may.
func (l limits) expired(a authorizer.Attributes, age time.Duration) string {
	switch {
	case l.reads > 0 && age > l.reads:
		return fmt.Sprintf("RBAC: rules were last seen %s ago, and requests are refused after %s (--authorization-max-read-staleness)",
			age.Truncate(time.Second), l.reads)
	case l.writes > 0 && age > l.writes && !readOnly(a):
		return fmt.Sprintf("RBAC: rules were last seen %s ago, and writes are refused after %s (--authorization-max-staleness)",
			age.Truncate(time.Second), l.writes)
	}
	return ""
}

// Authorize implements authorizer.Authorizer. It has no opinion if the rules are older than
// the limit, because permissions may have been revoked since. Other modes may still allow
// the request.
func (r rbacMode) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if r.age != nil {
		if reason := r.limits.expired(a, r.age()); reason != "" {
			return authorizer.DecisionNoOpinion, reason, nil
		}
	}
	if reason, ok := r.cache.allows(a); ok {
		return authorizer.DecisionAllow, reason, nil
	}
	decision, reason, err := r.cache.authorize(ctx, a, r.RBACAuthorizer)
	if decision != authorizer.DecisionAllow && !r.hasSynced() {
		// The answer is 403 with a reason, not 503: an error would be answered with 500,
		// and other modes may still allow the request.
		return authorizer.DecisionNoOpinion, reasonNotSynced, nil
	}
	return decision, reason, err
}

// reasonNotSynced is the reason of a process that started while core was not available.
const reasonNotSynced = "RBAC: the rules are not known yet; this server has not read them from the core tier since it started, please try again"

// readOnly reports whether a request only reads. It includes HEAD and OPTIONS of
// non-resource paths, whose verb is their method.
func readOnly(a authorizer.Attributes) bool {
	return a.IsReadOnly() || !a.IsResourceRequest() && (a.GetVerb() == "head" || a.GetVerb() == "options")
}

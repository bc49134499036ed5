package authz

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// rules is the mode RBAC on rules that may have grown old.
type rules struct {
	*rbac.RBACAuthorizer
	memory *memory
	age    func() time.Duration
	limits limits
	// read tells of each kind of rules that all of them were read once.
	read []cache.InformerSynced
}

func newRules(factory informers.SharedInformerFactory, age func() time.Duration, l limits) rules {
	v1 := WithBindings(factory).Rbac().V1()
	return rules{
		RBACAuthorizer: rbac.New(
			&rbac.RoleGetter{Lister: v1.Roles().Lister()},
			&rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
			&rbac.ClusterRoleGetter{Lister: v1.ClusterRoles().Lister()},
			&rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()},
		),
		memory: newMemory(factory),
		age:    age,
		limits: l,
		read: []cache.InformerSynced{
			v1.Roles().Informer().HasSynced, v1.RoleBindings().Informer().HasSynced,
			v1.ClusterRoles().Informer().HasSynced, v1.ClusterRoleBindings().Informer().HasSynced,
		},
	}
}

// limits are ages beyond which rules grant nothing; zero for no limit.
type limits struct{ writes, reads time.Duration }

// expired returns why a request is not granted by rules of an age, "" if it may be.
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

// Authorize implements authorizer.Authorizer. A right that is read from rules older
// than the limit may have been revoked since and is not granted. Other modes may still
// grant it.
func (r rules) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if r.age != nil {
		if reason := r.limits.expired(a, r.age()); reason != "" {
			return authorizer.DecisionNoOpinion, reason, nil
		}
	}
	if reason, ok := r.memory.allows(a); ok {
		return authorizer.DecisionAllow, reason, nil
	}
	decision, reason, err := r.memory.ask(ctx, a, r.RBACAuthorizer)
	if decision != authorizer.DecisionAllow && !r.known() {
		// A 403 with its reason, not a 503: an error of an authorizer is answered with
		// 500, and other modes may still allow what these rules say nothing of.
		return authorizer.DecisionNoOpinion, unknownRules, nil
	}
	return decision, reason, err
}

// unknownRules is why nothing is granted by a process that started while core was
// away.
const unknownRules = "RBAC: the rules are not known yet; this server has not read them from the core tier since it started, please try again"

// known tells whether all rules were read once. They are kept then.
func (r rules) known() bool {
	for _, read := range r.read {
		if !read() {
			return false
		}
	}
	return true
}

// readOnly counts in HEAD and OPTIONS of paths that are no resources, whose
// method is their verb.
func readOnly(a authorizer.Attributes) bool {
	return a.IsReadOnly() || !a.IsResourceRequest() && (a.GetVerb() == "head" || a.GetVerb() == "options")
}

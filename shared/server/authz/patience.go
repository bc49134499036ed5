package authz

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
)

// startPatience is how long after its start a server lets requests wait for the rules. Reading
// them takes tenths of a second, on a busy machine seconds.
const startPatience = 10 * time.Second

// AwaitRules returns an authorizer that decides as next does, which reads the rules of RBAC with
// the informers of factory. Until these have read them, but no longer than ten seconds after
// this call, a request on which next has no opinion waits, because a rule may allow it. A wrong
// denial costs more than the delay: after a forbidden watch, client-go lists everything again.
func AwaitRules(next authorizer.Authorizer, factory informers.SharedInformerFactory) authorizer.Authorizer {
	return awaitRules(next, rulesSynced(factory), startPatience)
}

func awaitRules(next authorizer.Authorizer, synced func() bool, patience time.Duration) authorizer.Authorizer {
	return &patientAuthorizer{next, synced, time.Now().Add(patience)}
}

type patientAuthorizer struct {
	authorizer.Authorizer
	synced   func() bool
	deadline time.Time
}

// Authorize implements authorizer.Authorizer.
func (p *patientAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := p.Authorizer.Authorize(ctx, a)
	if decision != authorizer.DecisionNoOpinion || !time.Now().Before(p.deadline) {
		return decision, reason, err
	}
	for p.wait(ctx) {
	}
	return p.Authorizer.Authorize(ctx, a)
}

// wait waits a moment and reports whether to wait longer.
func (p *patientAuthorizer) wait(ctx context.Context) bool {
	if p.synced() || !time.Now().Before(p.deadline) {
		return false
	}
	select {
	case <-time.After(5 * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}

// rulesSynced returns a function that reports whether the informers of a factory have read all
// rules. They keep them from then on.
func rulesSynced(factory informers.SharedInformerFactory) func() bool {
	v1 := factory.Rbac().V1()
	informers := []interface{ HasSynced() bool }{
		v1.Roles().Informer(), v1.RoleBindings().Informer(), v1.ClusterRoles().Informer(), v1.ClusterRoleBindings().Informer(),
	}
	return func() bool {
		for _, informer := range informers {
			if !informer.HasSynced() {
				return false
			}
		}
		return true
	}
}

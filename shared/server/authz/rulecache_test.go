package authz

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// countingAuthorizer counts the calls of another authorizer.
type countingAuthorizer struct {
	authorizer.Authorizer
	calls int
}

func (c *countingAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	c.calls++
	return c.Authorizer.Authorize(ctx, a)
}

// upstream returns the RBAC authorizer of kube-apiserver.
func upstream(factory informers.SharedInformerFactory) *rbac.RBACAuthorizer {
	v1 := factory.Rbac().V1()
	return rbac.New(&rbac.RoleGetter{Lister: v1.Roles().Lister()}, &rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
		&rbac.ClusterRoleGetter{Lister: v1.ClusterRoles().Lister()}, &rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()})
}

// TestRuleCacheAsUpstream: while rules and bindings change, the cache allows only requests
// that upstream allows, for one of upstream's reasons.
func TestRuleCacheAsUpstream(t *testing.T) {
	pick := func(r *rand.Rand, values ...string) string { return values[r.IntN(len(values))] }
	allowed, hits := 0, 0
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		rules := upstream(factory)
		next := &countingAuthorizer{Authorizer: rules}
		cached := CacheRules(next, []string{Node, RBAC}, factory).(*cachingAuthorizer)
		run(t, factory)
		for !cached.cache.generation.hasSynced() {
		}
		v1 := factory.Rbac().V1()
		kinds := []cache.SharedIndexInformer{
			v1.Roles().Informer(), v1.RoleBindings().Informer(), v1.ClusterRoles().Informer(), v1.ClusterRoleBindings().Informer(),
		}
		// The test changes the stores and the generation itself, without delay.
		change := func() {
			meta := metav1.ObjectMeta{Name: pick(random, "a", "b", "c")}
			kind := random.IntN(len(kinds))
			if kind < 2 {
				meta.Namespace = pick(random, "x", "y")
			}
			var role []rbacv1.PolicyRule
			for range random.IntN(3) {
				role = append(role, rbacv1.PolicyRule{
					Verbs: []string{pick(random, "get", "list", "*")}, APIGroups: []string{pick(random, "", "apps", "*")},
					Resources: []string{pick(random, "pods", "pods/log", "*", "*/log")}, ResourceNames: [][]string{nil, {"n"}}[random.IntN(2)],
				}, rbacv1.PolicyRule{Verbs: []string{pick(random, "get", "*")}, NonResourceURLs: []string{pick(random, "/healthz", "/api/*")}})
			}
			subjects := []rbacv1.Subject{
				{Kind: rbacv1.UserKind, Name: pick(random, "ann", "bob")},
				{Kind: rbacv1.GroupKind, Name: pick(random, "g", "h")},
				{Kind: rbacv1.ServiceAccountKind, Namespace: pick(random, "", "x"), Name: "sa"},
			}[random.IntN(3):]
			ref := rbacv1.RoleRef{Kind: "ClusterRole", Name: pick(random, "a", "b", "c")}
			if kind == 1 && random.IntN(2) == 0 {
				ref.Kind = "Role"
			}
			var object runtime.Object
			switch kind {
			case 0:
				object = &rbacv1.Role{ObjectMeta: meta, Rules: role}
			case 1:
				object = &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}
			case 2:
				object = &rbacv1.ClusterRole{ObjectMeta: meta, Rules: role}
			default:
				object = &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}
			}
			store := kinds[kind].GetStore()
			var err error
			if random.IntN(4) == 0 {
				err = store.Delete(object)
			} else {
				err = store.Update(object)
			}
			if err != nil {
				t.Fatal(err)
			}
			cached.cache.generation.changes.Add(1)
		}
		for range 400 {
			if random.IntN(8) == 0 {
				change()
			}
			a := authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: pick(random, "ann", "bob", "system:serviceaccount:x:sa"), Groups: [][]string{nil, {"g"}, {"g", "h"}}[random.IntN(3)]},
				Verb: pick(random, "get", "list", "create"), Namespace: pick(random, "", "x", "y"), APIGroup: pick(random, "", "apps"),
				Resource: pick(random, "pods", "deployments"), Subresource: pick(random, "", "log"), Name: pick(random, "", "n", "o"), ResourceRequest: true,
			}
			if random.IntN(6) == 0 {
				a.ResourceRequest, a.Path, a.Namespace = false, pick(random, "/healthz", "/api/v1", "/metrics"), ""
			}
			decision, _, _ := rules.Authorize(t.Context(), a)
			reasons := map[string]bool{} // the order of bindings is random
			cached.cache.resolver.VisitRulesFor(t.Context(), a.User, a.Namespace, func(source fmt.Stringer, rule *rbacv1.PolicyRule, _ error) bool {
				if rule != nil && rbac.RuleAllows(a, rule) {
					reasons["RBAC: allowed by "+source.String()] = true
				}
				return true
			})
			calls := next.calls
			got, gotReason, _ := cached.Authorize(t.Context(), a)
			if got == authorizer.DecisionAllow && next.calls == calls {
				hits++
				if decision != got || !reasons[gotReason] {
					t.Fatalf("seed %d: %+v: allowed: %s; upstream: %v, %v", seed, a, gotReason, decision, reasons)
				}
			}
			if decision == authorizer.DecisionAllow {
				allowed++
				for range collectThreshold { // without changes in between
					got, gotReason, _ = cached.Authorize(t.Context(), a)
				}
				if got != decision || !reasons[gotReason] {
					t.Fatalf("seed %d: %+v: %v %s; upstream allows it: %v", seed, a, got, gotReason, reasons)
				}
			}
		}
	}
	if hits < 50 {
		t.Errorf("%d were allowed, only %d of them from the cache", allowed, hits)
	}
}

// TestRuleCacheFollowsChanges: removed rules are no longer granted.
func TestRuleCacheFollowsChanges(t *testing.T) {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "ann"}},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	client := fake.NewClientset(binding, role)
	factory := informers.NewSharedInformerFactory(client, 0)
	next := &countingAuthorizer{Authorizer: upstream(factory)}
	cached := CacheRules(next, []string{RBAC}, factory)
	run(t, factory)
	a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Resource: "pods", ResourceRequest: true}
	eventually := func(want authorizer.Decision) {
		t.Helper()
		for {
			got, _, err := cached.Authorize(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			if got == want {
				return
			}
		}
	}
	for calls := -1; next.calls != calls; { // until the rules are cached
		calls = next.calls
		eventually(authorizer.DecisionAllow)
	}
	calls := next.calls
	for range 10 {
		eventually(authorizer.DecisionAllow)
	}
	if next.calls != calls {
		t.Errorf("%d calls for cached rules", next.calls-calls)
	}
	api := client.RbacV1()
	if err := api.ClusterRoles().Delete(t.Context(), "r", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(authorizer.DecisionNoOpinion)
	if _, err := api.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(authorizer.DecisionAllow)
	if err := api.ClusterRoleBindings().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(authorizer.DecisionNoOpinion)
}

// TestUncachedUsers: users about whom other authorizers decide are not cached.
func TestUncachedUsers(t *testing.T) {
	everybody := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, Name: user.AllAuthenticated}},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(everybody, role), 0)
	next := &countingAuthorizer{Authorizer: upstream(factory)}
	for _, modes := range [][]string{nil, {"Webhook", RBAC}, {Node, AlwaysDeny, RBAC}, {"ABAC"}} {
		if got := CacheRules(next, modes, factory); got != authorizer.Authorizer(next) {
			t.Errorf("%v: rules are cached that another mode may deny", modes)
		}
	}
	cached := CacheRules(next, []string{Node, RBAC, "Webhook"}, factory)
	run(t, factory)
	for !cached.(*cachingAuthorizer).cache.generation.hasSynced() {
	}
	for _, u := range []user.Info{
		nil,
		&user.DefaultInfo{Name: "root", Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup}},
		&user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup, user.AllAuthenticated}},
	} {
		if cached.(*cachingAuthorizer).cache.cacheable(u) {
			t.Errorf("%v is cacheable", u)
		}
		if u == nil {
			continue // upstream panics
		}
		calls := next.calls
		for range 2 * collectThreshold {
			_, _, _ = cached.Authorize(t.Context(), authorizer.AttributesRecord{User: u, Verb: "get", Resource: "pods", ResourceRequest: true})
		}
		if got := next.calls - calls; got != 2*collectThreshold {
			t.Errorf("%v: %d calls for %d requests", u, got, 2*collectThreshold)
		}
	}
	// There may be more users than the cache holds.
	for i := range 2*maxCachedUsers + 10 {
		u := &user.DefaultInfo{Name: fmt.Sprint("user-", i), Groups: []string{user.AllAuthenticated}}
		cached.Authorize(t.Context(), authorizer.AttributesRecord{User: u, Verb: "get", Resource: "pods", ResourceRequest: true})
	}
	if n := len(cached.(*cachingAuthorizer).cache.users); n > maxCachedUsers {
		t.Errorf("%d users are cached, more than %d", n, maxCachedUsers)
	}
}

// TestDeniedRequestsAreNotCached, whatever they name. Very long names are not cached either.
func TestDeniedRequestsAreNotCached(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "ann"}},
		},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}},
	), 0)
	next := &countingAuthorizer{Authorizer: upstream(factory)}
	cached := CacheRules(next, []string{Node, RBAC}, factory).(*cachingAuthorizer)
	run(t, factory)
	for !cached.cache.generation.hasSynced() {
	}
	ask := func(name, namespace string) authorizer.Decision {
		got, _, _ := cached.Authorize(t.Context(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: []string{user.AllUnauthenticated}}, Verb: "get", Namespace: namespace, Resource: "pods", ResourceRequest: true,
		})
		return got
	}
	for i := range 100 {
		for range 2 * collectThreshold {
			if ask(user.Anonymous, fmt.Sprint("n", i)) == authorizer.DecisionAllow {
				t.Fatal("anonymous is allowed")
			}
			if ask("ann", strings.Repeat("n", maxUserBytes+i)) != authorizer.DecisionAllow {
				t.Fatal("ann is not allowed")
			}
		}
	}
	if n := len(cached.cache.users); n != 0 {
		t.Errorf("%d users are cached", n)
	}
}

// TestRulesOfStoppedInformersAreNotCached: informers that report no changes cannot tell when
// cached rules become wrong.
func TestRulesOfStoppedInformersAreNotCached(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "reader"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "ann"}}},
	), 0)
	rules := upstream(factory)
	ctx, stop := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	stop()
	factory.Shutdown()
	cached := CacheRules(rules, []string{RBAC}, factory).(*cachingAuthorizer)
	a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Resource: "pods", Name: "a", ResourceRequest: true}
	for range 2 * collectThreshold {
		if decision, reason, err := cached.Authorize(t.Context(), a); decision != authorizer.DecisionAllow {
			t.Fatalf("not allowed: %s, %v", reason, err)
		}
	}
	if n := len(cached.cache.users); n != 0 {
		t.Errorf("%d users are cached", n)
	}
}

// BenchmarkCacheRules measures an allowed request, with the bindings of an empty cluster.
func BenchmarkCacheRules(b *testing.B) {
	var objects []runtime.Object
	for i := range 60 {
		name := fmt.Sprint("system:controller:", i)
		objects = append(objects, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: name}, {Kind: rbacv1.UserKind, Name: "ann"}}[i/59 : 1+i/59],
		}, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}})
	}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	rules := upstream(factory)
	ways := map[string]authorizer.Authorizer{"upstream": rules, "cached": CacheRules(rules, []string{RBAC}, factory)}
	ctx, cancel := context.WithCancel(b.Context())
	factory.StartWithContext(ctx)
	defer func() { cancel(); factory.Shutdown() }()
	factory.WaitForCacheSync(ctx.Done())
	a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated}}, Verb: "get", Namespace: "default", Resource: "pods", Name: "a", ResourceRequest: true}
	for name, way := range ways {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got, _, _ := way.Authorize(ctx, a); got != authorizer.DecisionAllow {
					b.Fatal("not allowed")
				}
			}
		})
	}
}

package authz

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// CacheRules returns an authorizer that decides as next does, which asks modes in the given
// order. RBAC searches all bindings for the user at every request. CacheRules searches them
// once after a rule or a binding has changed, and allows what the user's rules allow without
// asking next. If a mode in front of RBAC might decide otherwise, it returns next.
//
// The cached rules of a user lag behind the informers' stores until the informers have
// called their handlers.
func CacheRules(next authorizer.Authorizer, modes []string, factory informers.SharedInformerFactory) authorizer.Authorizer {
	for _, mode := range modes {
		switch mode {
		case Node: // decides only about nodes
		case RBAC:
			return &cachingAuthorizer{next, newRuleCache(factory)}
		default:
			return next
		}
	}
	return next
}

type cachingAuthorizer struct {
	authorizer.Authorizer
	cache *ruleCache
}

// Authorize implements authorizer.Authorizer.
func (c *cachingAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if reason, ok := c.cache.allows(a); ok {
		authorizationmetrics.RecordAuthorizationDecision(RBAC, "rbac", "allowed")
		return authorizer.DecisionAllow, reason, nil
	}
	return c.cache.authorize(ctx, a, c.Authorizer)
}

const (
	// maxCachedUsers bounds the number of users whose rules are cached, counted once for
	// each namespace.
	maxCachedUsers = 4096
	// maxUserBytes bounds the names of a cached user, its groups and the namespace.
	maxUserBytes = 2048
	// collectThreshold is the number of a user's allowed requests after which its rules are
	// collected: if rules change with every other request, collecting costs more than it
	// saves. Denied requests leave nothing behind, because anybody can send one, with any
	// name.
	collectThreshold = 3
)

// ruleCache caches the rules of users. It is safe for concurrent use.
type ruleCache struct {
	resolver   *validation.DefaultRuleResolver
	seed       maphash.Seed
	generation generation

	mu    sync.RWMutex
	users map[uint64]*userRules // by hash; guarded by mu
}

// userRules are the rules of a user in a namespace at a generation.
type userRules struct {
	name, namespace string
	groups          []string
	generation      uint64
	allowed         atomic.Int64            // number of allowed requests
	grants          atomic.Pointer[[]grant] // nil until they are collected
}

type grant struct {
	rule   *rbacv1.PolicyRule
	reason string
}

func newRuleCache(factory informers.SharedInformerFactory) *ruleCache {
	v1 := factory.Rbac().V1()
	c := &ruleCache{
		resolver: validation.NewDefaultRuleResolver(
			&rbac.RoleGetter{Lister: v1.Roles().Lister()},
			&rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
			&rbac.ClusterRoleGetter{Lister: v1.ClusterRoles().Lister()},
			&rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()},
		),
		seed:  maphash.MakeSeed(),
		users: map[uint64]*userRules{},
	}
	c.generation.follow(v1.Roles().Informer(), v1.RoleBindings().Informer(), v1.ClusterRoles().Informer(), v1.ClusterRoleBindings().Informer())
	return c
}

// cacheable reports whether RBAC alone decides about a user.
func (c *ruleCache) cacheable(u user.Info) bool {
	if u == nil || !c.generation.hasSynced() {
		return false
	}
	for _, group := range u.GetGroups() {
		if group == user.SystemPrivilegedGroup || group == user.NodesGroup {
			return false // other authorizers decide before RBAC
		}
	}
	return true
}

// allows reports whether a cached rule allows a request, and why.
func (c *ruleCache) allows(a authorizer.Attributes) (reason string, ok bool) {
	u := a.GetUser()
	if !c.cacheable(u) {
		return "", false
	}
	rules := c.find(u, a.GetNamespace(), c.generation.current())
	if rules == nil {
		return "", false
	}
	if grants := rules.grants.Load(); grants != nil {
		for _, g := range *grants {
			if rbac.RuleAllows(a, g.rule) {
				return g.reason, true
			}
		}
	}
	return "", false
}

// find returns the cached rules of a user, or nil if there are none of this generation.
func (c *ruleCache) find(u user.Info, namespace string, generation uint64) *userRules {
	name, groups := u.GetName(), u.GetGroups()
	c.mu.RLock()
	rules := c.users[c.hash(name, namespace, groups)]
	c.mu.RUnlock()
	if rules == nil || rules.generation != generation || rules.name != name || rules.namespace != namespace || !slices.Equal(rules.groups, groups) {
		return nil
	}
	return rules
}

// authorize asks next, and records the user if the request is allowed.
func (c *ruleCache) authorize(ctx context.Context, a authorizer.Attributes, next authorizer.Authorizer) (authorizer.Decision, string, error) {
	generation := c.generation.current() // before next reads any rule
	decision, reason, err := next.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		c.recordAllowed(ctx, a, generation)
	}
	return decision, reason, err
}

// recordAllowed is called for each allowed request that no cached rule allowed. After
// several it collects the user's rules.
func (c *ruleCache) recordAllowed(ctx context.Context, a authorizer.Attributes, generation uint64) {
	u, namespace := a.GetUser(), a.GetNamespace()
	if !c.cacheable(u) {
		return
	}
	rules := c.find(u, namespace, generation)
	if rules == nil {
		rules = c.add(u, namespace, generation)
	}
	if rules == nil || rules.allowed.Add(1) != collectThreshold {
		return
	}
	grants := c.collect(ctx, u, namespace)
	rules.grants.Store(&grants)
}

// add adds an entry for a user, or returns nil if its names are too long.
func (c *ruleCache) add(u user.Info, namespace string, generation uint64) *userRules {
	name, groups := u.GetName(), u.GetGroups()
	size := len(name) + len(namespace)
	for _, group := range groups {
		size += len(group)
	}
	if size > maxUserBytes {
		return nil
	}
	// The clones do not keep the strings of the request alive, which may be much longer.
	rules := &userRules{name: strings.Clone(name), namespace: strings.Clone(namespace), generation: generation}
	for _, group := range groups {
		rules.groups = append(rules.groups, strings.Clone(group))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.users) >= maxCachedUsers {
		clear(c.users)
	}
	c.users[c.hash(name, namespace, groups)] = rules
	return rules
}

// collect searches all bindings for a user's rules. It ignores errors in bindings: next
// reports them for requests that no rule allows.
func (c *ruleCache) collect(ctx context.Context, u user.Info, namespace string) []grant {
	grants := []grant{}
	c.resolver.VisitRulesFor(ctx, u, namespace, func(source fmt.Stringer, rule *rbacv1.PolicyRule, _ error) bool {
		if rule == nil {
			return true
		}
		reason := "RBAC: allowed by " + source.String()
		if last := len(grants) - 1; last >= 0 && grants[last].reason == reason {
			reason = grants[last].reason // share the string
		}
		grants = append(grants, grant{rule, reason})
		return true
	})
	return grants
}

func (c *ruleCache) hash(name, namespace string, groups []string) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	_, _ = h.WriteString(name) // never fails
	_ = h.WriteByte(0)
	_, _ = h.WriteString(namespace)
	for _, group := range groups {
		_ = h.WriteByte(0)
		_, _ = h.WriteString(group)
	}
	return h.Sum64()
}

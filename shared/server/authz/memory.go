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
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// Remember returns an authorizer that decides as decide does, whose modes are asked in the
// order given. RBAC looks through all bindings for the user with every request; here they
// are looked through when a rule or a binding has changed, and what they allow is allowed
// without asking decide. It asks decide for everything where a mode before RBAC might say
// something else.
//
// What is known of a user is older than what the informers hold for as long as it takes
// them to call their handlers.
func Remember(decide authorizer.Authorizer, modes []string, factory informers.SharedInformerFactory) authorizer.Authorizer {
	for _, mode := range modes {
		switch mode {
		case Node: // of nodes alone
		case RBAC:
			return &remembering{decide, newMemory(factory)}
		default:
			return decide
		}
	}
	return decide
}

type remembering struct {
	authorizer.Authorizer
	memory *memory
}

// Authorize implements authorizer.Authorizer.
func (r *remembering) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if reason, ok := r.memory.allows(a); ok {
		authorizationmetrics.RecordAuthorizationDecision(RBAC, "rbac", "allowed")
		return authorizer.DecisionAllow, reason, nil
	}
	return r.memory.ask(ctx, a, r.Authorizer)
}

const (
	// maxKnown bounds the users, in each namespace, whose rules are known, and maxNames
	// the bytes of the names of one of them.
	maxKnown = 4096
	maxNames = 2048
	// gathersAt is the allowed request of a user at which rules are gathered: where they
	// change with every other request it would only cost more. What was denied leaves
	// nothing behind: anybody can ask for it, by any name.
	gathersAt = 3
)

// memory knows the rules of users. It is safe for concurrent use.
type memory struct {
	resolver *validation.DefaultRuleResolver
	seed     maphash.Seed
	// changes counts the calls of the informers' handlers, which come after what they hold
	// has changed.
	changes atomic.Uint64
	// told: the handlers have been told of all that there was at first. Until then nothing
	// is known.
	told   []cache.InformerSynced
	follow atomic.Bool

	mu    sync.RWMutex
	known map[uint64]*known // guarded by mu
}

// known are the rules of a user in a namespace, as they were after so many changes.
type known struct {
	name, namespace string
	groups          []string
	changes         uint64
	allowed         atomic.Int64
	rules           atomic.Pointer[[]grant]
}

type grant struct {
	rule   *rbacv1.PolicyRule
	reason string
}

func newMemory(factory informers.SharedInformerFactory) *memory {
	v1 := factory.Rbac().V1()
	m := &memory{
		resolver: validation.NewDefaultRuleResolver(
			&rbac.RoleGetter{Lister: v1.Roles().Lister()},
			&rbac.RoleBindingLister{Lister: v1.RoleBindings().Lister()},
			&rbac.ClusterRoleGetter{Lister: v1.ClusterRoles().Lister()},
			&rbac.ClusterRoleBindingLister{Lister: v1.ClusterRoleBindings().Lister()},
		),
		seed:  maphash.MakeSeed(),
		known: map[uint64]*known{},
	}
	changed := func() { m.changes.Add(1) }
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(_, _ any) { changed() },
		DeleteFunc: func(any) { changed() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		v1.Roles().Informer(), v1.RoleBindings().Informer(), v1.ClusterRoles().Informer(), v1.ClusterRoleBindings().Informer(),
	} {
		told := func() bool { return false }
		if registration, err := informer.AddEventHandler(handler); err == nil { // else it has been stopped
			told = registration.HasSynced
		}
		m.told = append(m.told, told)
	}
	return m
}

func (m *memory) follows() bool {
	if m.follow.Load() {
		return true
	}
	for _, told := range m.told {
		if !told() {
			return false
		}
	}
	m.follow.Store(true)
	return true
}

// remembers reports whether what the user may do is a matter of RBAC alone.
func (m *memory) remembers(u user.Info) bool {
	if u == nil || !m.follows() {
		return false
	}
	for _, group := range u.GetGroups() {
		if group == user.SystemPrivilegedGroup || group == user.NodesGroup {
			return false // others are asked before RBAC
		}
	}
	return true
}

// allows reports whether a rule that is known allows a request, and which.
func (m *memory) allows(a authorizer.Attributes) (reason string, ok bool) {
	u := a.GetUser()
	if !m.remembers(u) {
		return "", false
	}
	k := m.find(u, a.GetNamespace(), m.changes.Load())
	if k == nil {
		return "", false
	}
	if rules := k.rules.Load(); rules != nil {
		for _, g := range *rules {
			if rbac.RuleAllows(a, g.rule) {
				return g.reason, true
			}
		}
	}
	return "", false
}

// find returns what is known of a user, nil if that is nothing or was true before other
// changes.
func (m *memory) find(u user.Info, namespace string, changes uint64) *known {
	name, groups := u.GetName(), u.GetGroups()
	m.mu.RLock()
	k := m.known[m.key(name, namespace, groups)]
	m.mu.RUnlock()
	if k == nil || k.changes != changes || k.name != name || k.namespace != namespace || !slices.Equal(k.groups, groups) {
		return nil
	}
	return k
}

// ask has another authorizer decide, and remembers the user if it allows the request.
func (m *memory) ask(ctx context.Context, a authorizer.Attributes, other authorizer.Authorizer) (authorizer.Decision, string, error) {
	changes := m.changes.Load() // before anything is looked at
	decision, reason, err := other.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		m.note(ctx, a, changes)
	}
	return decision, reason, err
}

// note is called for each request that is allowed without being known, and gathers the
// user's rules when there have been several.
func (m *memory) note(ctx context.Context, a authorizer.Attributes, changes uint64) {
	u, namespace := a.GetUser(), a.GetNamespace()
	if !m.remembers(u) {
		return
	}
	k := m.find(u, namespace, changes)
	if k == nil {
		k = m.add(u, namespace, changes)
	}
	if k == nil || k.allowed.Add(1) != gathersAt {
		return
	}
	rules := m.gather(ctx, u, namespace)
	k.rules.Store(&rules)
}

// add makes room for what will be known of a user; nil if its names are too long.
func (m *memory) add(u user.Info, namespace string, changes uint64) *known {
	name, groups := u.GetName(), u.GetGroups()
	size := len(name) + len(namespace)
	for _, group := range groups {
		size += len(group)
	}
	if size > maxNames {
		return nil
	}
	// Of a request that may be much longer, nothing else is kept.
	k := &known{name: strings.Clone(name), namespace: strings.Clone(namespace), changes: changes}
	for _, group := range groups {
		k.groups = append(k.groups, strings.Clone(group))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) >= maxKnown {
		clear(m.known)
	}
	m.known[m.key(name, namespace, groups)] = k
	return k
}

// gather looks through all bindings. What is wrong with one of them is for those to tell
// who are asked when no rule allows a request.
func (m *memory) gather(ctx context.Context, u user.Info, namespace string) []grant {
	rules := []grant{}
	m.resolver.VisitRulesFor(ctx, u, namespace, func(source fmt.Stringer, rule *rbacv1.PolicyRule, _ error) bool {
		if rule == nil {
			return true
		}
		reason := "RBAC: allowed by " + source.String()
		if last := len(rules) - 1; last >= 0 && rules[last].reason == reason {
			reason = rules[last].reason // one of the two can be collected
		}
		rules = append(rules, grant{rule, reason})
		return true
	})
	return rules
}

func (m *memory) key(name, namespace string, groups []string) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	_, _ = h.WriteString(name) // none of these fails
	_ = h.WriteByte(0)
	_, _ = h.WriteString(namespace)
	for _, group := range groups {
		_ = h.WriteByte(0)
		_, _ = h.WriteString(group)
	}
	return h.Sum64()
}

package authz

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

var (
	admin   = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	alice   = &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
	node    = &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated}}
	unnamed = &user.DefaultInfo{Name: "n1", Groups: []string{user.NodesGroup}}
)

func resource(u user.Info, verb, group, namespace, name string) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: group, APIVersion: "v1", Namespace: namespace, Resource: name, ResourceRequest: true,
	}
}

func path(u user.Info, verb, path string) authorizer.Attributes {
	return authorizer.AttributesRecord{User: u, Verb: verb, Path: path}
}

// rulesForAlice lets alice read and write things in the namespace a, read them
// everywhere, and get /metrics.
func rulesForAlice(t *testing.T) informers.SharedInformerFactory {
	t.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "alice"}}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "writer"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"*"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}},
		}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "writer"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "writer"}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}},
			{Verbs: []string{"get", "head", "post"}, NonResourceURLs: []string{"/metrics"}},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"}},
	), 0)
	return factory
}

func run(t *testing.T, factory informers.SharedInformerFactory) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			t.Fatalf("%v did not sync", kind)
		}
	}
}

func TestModes(t *testing.T) {
	tests := []struct {
		name  string
		modes []string
		what  authorizer.Attributes
		want  bool
	}{
		{"RBAC, role in its namespace", []string{RBAC}, resource(alice, "create", "example.com", "a", "things"), true},
		{"RBAC, role in another namespace", []string{RBAC}, resource(alice, "create", "example.com", "b", "things"), false},
		{"RBAC, cluster role", []string{RBAC}, resource(alice, "list", "example.com", "b", "things"), true},
		{"RBAC, path", []string{RBAC}, path(alice, "get", "/metrics"), true},
		{"RBAC, other path", []string{RBAC}, path(alice, "get", "/debug/pprof/"), false},
		{"RBAC, system:masters without a rule", []string{RBAC}, resource(admin, "delete", "example.com", "", "things"), true},
		{"AlwaysDeny, alice", []string{AlwaysDeny}, resource(alice, "list", "example.com", "a", "things"), false},
		{"AlwaysDeny, system:masters", []string{AlwaysDeny}, resource(admin, "list", "example.com", "a", "things"), true},
		{"AlwaysAllow", []string{AlwaysAllow}, resource(alice, "delete", "example.com", "b", "things"), true},
		// As in kube-apiserver, AlwaysDeny has no opinion, and the next mode is asked.
		{"AlwaysDeny, RBAC", []string{AlwaysDeny, RBAC}, resource(alice, "list", "example.com", "a", "things"), true},
		{"Node, allowed for every node", []string{Node}, resource(node, "create", "authorization.k8s.io", "", "subjectaccessreviews"), true},
		{"Node, a Secret, which needs the graph", []string{Node}, resource(node, "get", "", "a", "secrets"), false},
		{"Node, a custom resource", []string{Node}, resource(node, "get", "example.com", "a", "things"), false},
		{"Node, another user", []string{Node}, resource(alice, "create", "authorization.k8s.io", "", "subjectaccessreviews"), false},
		{"Node, a node without a name", []string{Node}, resource(unnamed, "create", "authorization.k8s.io", "", "subjectaccessreviews"), false},
		{"Node, RBAC", []string{Node, RBAC}, resource(alice, "update", "example.com", "a", "things"), true},
	}
	factory := rulesForAlice(t)
	made := map[string]*Authorizer{}
	for _, test := range tests {
		options := Options{Modes: test.modes}
		a, err := options.New(Dependencies{Informers: factory})
		if err != nil {
			t.Fatal(err)
		}
		made[test.name] = a
	}
	run(t, factory)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			decision, reason, err := made[test.name].Authorize(t.Context(), test.what)
			if err != nil {
				t.Fatal(err)
			}
			if got := decision == authorizer.DecisionAllow; got != test.want {
				t.Errorf("allowed: %t (%s), want %t", got, reason, test.want)
			}
		})
	}
}

func TestRulesFor(t *testing.T) {
	factory := rulesForAlice(t)
	a, err := NewOptions().New(Dependencies{Informers: factory})
	if err != nil {
		t.Fatal(err)
	}
	run(t, factory)
	resources, paths, incomplete, err := a.RulesFor(t.Context(), alice, "a")
	if err != nil || incomplete || len(resources) != 2 || len(paths) != 1 {
		t.Errorf("alice: %d resource rules, %d path rules, incomplete %t, %v; want 2, 1, false", len(resources), len(paths), incomplete, err)
	}
	if _, _, incomplete, _ := a.RulesFor(t.Context(), node, "a"); !incomplete {
		t.Error("the rules of a node are reported as complete")
	}
}

package authz

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"
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

func resource(who user.Info, verb, group, namespace, name string) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: who, Verb: verb, APIGroup: group, APIVersion: "v1", Namespace: namespace, Resource: name, ResourceRequest: true,
	}
}

func path(who user.Info, verb, path string) authorizer.Attributes {
	return authorizer.AttributesRecord{User: who, Verb: verb, Path: path}
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
		// AlwaysDeny has no opinion, as in kube-apiserver: the next mode is asked.
		{"AlwaysDeny, RBAC", []string{AlwaysDeny, RBAC}, resource(alice, "list", "example.com", "a", "things"), true},
		{"Node, what every node may do", []string{Node}, resource(node, "create", "authorization.k8s.io", "", "subjectaccessreviews"), true},
		{"Node, a Secret, which the graph decides", []string{Node}, resource(node, "get", "", "a", "secrets"), false},
		{"Node, a custom resource", []string{Node}, resource(node, "get", "example.com", "a", "things"), false},
		{"Node, somebody else", []string{Node}, resource(alice, "create", "authorization.k8s.io", "", "subjectaccessreviews"), false},
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

// TestOldRules: rules older than a limit grant reads and no writes, and past another one
// nothing.
func TestOldRules(t *testing.T) {
	const limit, last = time.Minute, time.Hour
	write, read := resource(alice, "create", "example.com", "a", "things"), resource(alice, "get", "example.com", "a", "things")
	tests := map[string]struct {
		age, limit time.Duration
		what       authorizer.Attributes
		want       bool
	}{
		"fresh, write":                   {0, limit, write, true},
		"at the limit, write":            {limit, limit, write, true},
		"old, write":                     {limit + 1, limit, write, false},
		"old, read":                      {limit + 1, limit, read, true},
		"old, system:masters":            {limit + 1, limit, resource(admin, "delete", "", "", "things"), true},
		"old, no limit":                  {last, 0, write, true},
		"at the last limit, read":        {last, limit, read, true},
		"very old, read":                 {last + 1, limit, read, false},
		"very old, write":                {last + 1, 0, write, false},
		"very old, GET of a path":        {last + 1, limit, path(alice, "get", "/metrics"), false},
		"very old, system:masters":       {last + 1, limit, resource(admin, "delete", "", "", "things"), true},
		"old, GET of a path":             {limit + 1, limit, path(alice, "get", "/metrics"), true},
		"old, HEAD of a path":            {limit + 1, limit, path(alice, "head", "/metrics"), true},
		"old, POST to a path":            {limit + 1, limit, path(alice, "post", "/metrics"), false},
		"old, a write never allowed":     {limit + 1, limit, resource(alice, "create", "", "a", "pods"), false},
		"old, watch, which is a read":    {limit + 1, limit, resource(alice, "watch", "example.com", "", "things"), true},
		"old, deletecollection, a write": {limit + 1, limit, resource(alice, "deletecollection", "example.com", "a", "things"), false},
	}
	factory := rulesForAlice(t)
	made := map[string]*Authorizer{}
	for name, test := range tests {
		options := Options{Modes: []string{Node, RBAC}, MaxStaleness: test.limit, MaxReadStaleness: last}
		a, err := options.New(Dependencies{Informers: factory, Age: func() time.Duration { return test.age }})
		if err != nil {
			t.Fatal(err)
		}
		made[name] = a
	}
	run(t, factory)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			decision, reason, err := made[name].Authorize(t.Context(), test.what)
			if err != nil {
				t.Fatal(err)
			}
			if got := decision == authorizer.DecisionAllow; got != test.want {
				t.Errorf("allowed: %t (%s), want %t", got, reason, test.want)
			}
			if !test.want && test.age > test.limit && !strings.Contains(reason, "--authorization-max-") {
				t.Errorf("the reason %q does not say why", reason)
			}
		})
	}
}

// TestUnknownRules: a tier that starts while core is away grants nothing by RBAC,
// and says why.
func TestUnknownRules(t *testing.T) {
	factory := rulesForAlice(t)
	o := NewOptions()
	o.Modes = []string{Node, RBAC}
	made, err := o.New(Dependencies{Informers: factory})
	if err != nil {
		t.Fatal(err)
	}
	list := resource(alice, "list", "example.com", "b", "things")
	decision, reason, err := made.Authorize(t.Context(), list)
	if decision == authorizer.DecisionAllow || err != nil || !strings.Contains(reason, "not known yet") {
		t.Errorf("before: %v, %q, %v", decision, reason, err)
	}
	if decision, _, err := made.Authorize(t.Context(), resource(admin, "list", "example.com", "b", "things")); decision != authorizer.DecisionAllow || err != nil {
		t.Errorf("an administrator needs no rules: %v, %v", decision, err)
	}
	run(t, factory)
	if decision, reason, err := made.Authorize(t.Context(), list); decision != authorizer.DecisionAllow || err != nil {
		t.Errorf("after: %v, %q, %v", decision, reason, err)
	}
	decision, reason, err = made.Authorize(t.Context(), resource(alice, "create", "example.com", "b", "things"))
	if decision == authorizer.DecisionAllow || err != nil || strings.Contains(reason, "not known yet") {
		t.Errorf("what the rules do not grant: %v, %q, %v", decision, reason, err)
	}
}

func TestAgeMetric(t *testing.T) {
	registry := prometheus.NewRegistry()
	_, err := NewOptions().New(Dependencies{
		Informers: rulesForAlice(t), Registerer: registry, Age: func() time.Duration { return 90 * time.Second },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `# HELP triune_authorization_data_age_seconds Time for which the RBAC rules have not been watched at core; 0 while they are.
# TYPE triune_authorization_data_age_seconds gauge
triune_authorization_data_age_seconds 90
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
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
		t.Error("the rules of a node are said to be complete")
	}
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		args []string
		want []string
	}{
		"the defaults":  {},
		"unknown modes": {[]string{"--authorization-mode=RBAC,Maybe,Perhaps"}, []string{"--authorization-mode=Maybe", "--authorization-mode=Perhaps"}},
		"repeated mode": {[]string{"--authorization-mode=RBAC,RBAC"}, []string{"--authorization-mode names RBAC"}},
		"no mode":       {[]string{"--authorization-mode="}, []string{"--authorization-mode"}},
		"negative age":  {[]string{"--authorization-max-staleness=-1m"}, []string{"--authorization-max-staleness=-1m0s"}},
		"for reads":     {[]string{"--authorization-max-read-staleness=-1m"}, []string{"--authorization-max-read-staleness=-1m0s"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
			o.AddFlags(flags)
			if err := flags.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			problems := o.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("got %v, want %d problems", problems, len(test.want))
			}
			for i, problem := range problems {
				if !strings.Contains(problem.Error(), test.want[i]) {
					t.Errorf("%q does not name %s", problem, test.want[i])
				}
			}
		})
	}
}

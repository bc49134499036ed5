package authz

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TestOldRules: rules older than a limit grant reads but no writes, and those older than
// another limit nothing.
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
				t.Errorf("the reason %q does not name the flag", reason)
			}
		})
	}
}

// TestRulesNotSynced: a tier that starts while core is not available grants nothing by
// RBAC, and says why.
func TestRulesNotSynced(t *testing.T) {
	factory := rulesForAlice(t)
	o := NewOptions()
	o.Modes = []string{Node, RBAC}
	made, err := o.New(Dependencies{Informers: factory})
	if err != nil {
		t.Fatal(err)
	}
	list := resource(alice, "list", "example.com", "b", "things")
	ended, cancel := context.WithCancel(t.Context())
	cancel() // or it would wait for the rules
	decision, reason, err := made.Authorize(ended, list)
	if decision == authorizer.DecisionAllow || err != nil || !strings.Contains(reason, "not known yet") {
		t.Errorf("before: %v, %q, %v", decision, reason, err)
	}
	if decision, _, err := made.Authorize(t.Context(), resource(admin, "list", "example.com", "b", "things")); decision != authorizer.DecisionAllow || err != nil {
		t.Errorf("an administrator, who needs no rules: %v, %v", decision, err)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if decision, reason, err := made.Authorize(t.Context(), list); decision != authorizer.DecisionAllow || err != nil {
			t.Errorf("after: %v, %q, %v", decision, reason, err)
		}
	})
	run(t, factory)
	waiting.Wait()
	decision, reason, err = made.Authorize(t.Context(), resource(alice, "create", "example.com", "b", "things"))
	if decision == authorizer.DecisionAllow || err != nil || strings.Contains(reason, "not known yet") {
		t.Errorf("a request that no rule allows: %v, %q, %v", decision, reason, err)
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

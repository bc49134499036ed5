package authz

import (
	"encoding/json"
	"net/http"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"triune.dev/shared/server/agreement"
	"triune.dev/shared/transport/loopback"
)

// fakeCore answers SubjectAccessReviews and counts them.
type fakeCore struct {
	kubernetes.Interface
	status  authorizationv1.SubjectAccessReviewStatus
	away    bool
	reviews int
}

func newFakeCore(t *testing.T) *fakeCore {
	t.Helper()
	r := &fakeCore{}
	config := loopback.Config(func() http.Handler { return http.HandlerFunc(r.review) }, "")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	r.Interface = client
	return r
}

func (r *fakeCore) review(w http.ResponseWriter, req *http.Request) {
	r.reviews++
	var review authorizationv1.SubjectAccessReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil || r.away {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	review.Status = r.status
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

// TestCoreAuthorizer checks who decides, depending on core's settings.
func TestCoreAuthorizer(t *testing.T) {
	granted := resource(alice, "list", "example.com", "b", "things") // by RBAC
	allow := authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "core says so"}
	deny := authorizationv1.SubjectAccessReviewStatus{Reason: "no policy matched"}
	same, other := agreement.Settings{ModesSetting: "Node,RBAC"}, agreement.Settings{ModesSetting: "Node,Webhook"}
	tests := []struct {
		name     string
		settings []agreement.Settings // of core
		core     authorizationv1.SubjectAccessReviewStatus
		away     bool
		want     bool
		reason   string // "" for RBAC's
		reviewed bool
	}{
		{"the same modes", []agreement.Settings{same}, deny, false, true, "", false},
		{"an earlier release", []agreement.Settings{nil}, deny, false, true, "", false},
		{"other modes, which refuse", []agreement.Settings{other}, deny, false, false, "no policy matched", true},
		{"other modes, which allow", []agreement.Settings{other}, allow, false, true, "core says so", true},
		{"other modes, core is away", []agreement.Settings{other}, allow, true, false, "", true},
		{"other modes, then the same", []agreement.Settings{other, same}, deny, false, true, "", false},
		{"the same, then other modes", []agreement.Settings{same, other}, deny, false, false, "no policy matched", true},
		// The rules have synced, but core may have other modes.
		{"no settings yet", nil, deny, false, false, "no policy matched", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			factory, core := rulesForAlice(t), newFakeCore(t)
			core.status, core.away = test.core, test.away
			made, err := NewOptions().New(Dependencies{Informers: factory, Reviews: core.AuthorizationV1()})
			if err != nil {
				t.Fatal(err)
			}
			run(t, factory)
			for _, settings := range test.settings {
				made.SetCoreSettings(settings)
			}
			decision, reason, err := made.Authorize(t.Context(), granted)
			if got := decision == authorizer.DecisionAllow; got != test.want || (err != nil) != test.away {
				t.Errorf("allowed: %t, %v, want %t", got, err, test.want)
			}
			if test.reason != "" && reason != test.reason {
				t.Errorf("reason %q, want %q", reason, test.reason)
			}
			if got := core.reviews > 0; got != test.reviewed {
				t.Errorf("core was asked: %t, want %t", got, test.reviewed)
			}
			// Core is not asked about an administrator.
			before := core.reviews
			if decision, _, err := made.Authorize(t.Context(), resource(admin, "delete", "", "", "things")); decision != authorizer.DecisionAllow || err != nil || core.reviews != before {
				t.Errorf("an administrator: %v, %v, %d reviews", decision, err, core.reviews-before)
			}
		})
	}
}

// TestCoreDecidesByGraph: core, which has the graph of nodes, is asked about requests of
// nodes that need the graph, and about no others.
func TestCoreDecidesByGraph(t *testing.T) {
	node := &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}}
	factory, core := rulesForAlice(t), newFakeCore(t)
	core.status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "core says so"}
	made, err := NewOptions().New(Dependencies{Informers: factory, Reviews: core.AuthorizationV1()})
	if err != nil {
		t.Fatal(err)
	}
	run(t, factory)
	made.SetCoreSettings(agreement.Settings{ModesSetting: "Node,RBAC"})
	for _, test := range []struct {
		user     user.Info
		resource string
		reviews  int
	}{{node, "pods", 1}, {node, "services", 0}, {alice, "pods", 0}} {
		core.reviews = 0
		if _, _, err := made.Authorize(t.Context(), resource(test.user, "get", "", "a", test.resource)); err != nil || core.reviews != test.reviews {
			t.Errorf("%s gets %s: %d reviews, %v, want %d", test.user.GetName(), test.resource, core.reviews, err, test.reviews)
		}
	}
}

// TestOverrides: a tier that is configured to allow or deny everything does so, and
// contradicts core.
func TestOverrides(t *testing.T) {
	o := NewOptions()
	if settings := o.Settings(); len(settings) != 0 {
		t.Errorf("the default options have settings: %v", settings)
	}
	o.Modes = []string{AlwaysAllow}
	core := newFakeCore(t)
	made, err := o.New(Dependencies{Reviews: core.AuthorizationV1()})
	if err != nil {
		t.Fatal(err)
	}
	made.SetCoreSettings(agreement.Settings{ModesSetting: "Node,Webhook"})
	if decision, _, err := made.Authorize(t.Context(), resource(alice, "delete", "example.com", "b", "things")); decision != authorizer.DecisionAllow || err != nil || core.reviews != 0 {
		t.Errorf("%v, %v, %d reviews", decision, err, core.reviews)
	}
	if got := o.Settings()[ModesSetting]; got != "AlwaysAllow" {
		t.Errorf("the setting is %q", got)
	}
}

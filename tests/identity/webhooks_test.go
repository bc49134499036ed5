package identity

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/hooks"
)

// webhooks reviews tokens and access over HTTPS. The token or the resource decides whether
// it answers properly.
type webhooks struct{ *httptest.Server }

func newWebhooks() *webhooks {
	w := &webhooks{}
	mux := http.NewServeMux()
	mux.HandleFunc("/authenticate", w.authenticate)
	mux.HandleFunc("/authorize", w.authorize)
	w.Server = httptest.NewTLSServer(mux)
	return w
}

// kubeconfig returns the kubeconfig with which servers reach a webhook.
func (w *webhooks) kubeconfig(path string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw})
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: webhook, cluster: {server: %q, certificate-authority-data: %s}}]
contexts: [{name: webhook, context: {cluster: webhook}}]
current-context: webhook
`, w.URL+path, base64.StdEncoding.EncodeToString(ca))
}

// users has the users of the known tokens, which begin with "hook-". A token "hook-as:" and
// a name stands for that name.
var users = map[string]authenticationv1.TokenReviewStatus{
	"judged": {Authenticated: true, User: authenticationv1.UserInfo{
		Username: "judged:carol", UID: "7", Groups: []string{"wheelwrights"},
		Extra: map[string]authenticationv1.ExtraValue{"example.com/scopes": {"a", "b"}, "Upper/ÄÖ%": {"ü,%"}},
	}},
	"nobody":      {Authenticated: true},
	"no":          {Authenticated: false, User: authenticationv1.UserInfo{Username: "judged:carol", Groups: []string{"system:masters"}}},
	"no-error":    {Authenticated: false, Error: "no such token"},
	"yes-error":   {Authenticated: true, Error: "but I am not sure", User: authenticationv1.UserInfo{Username: "judged:carol"}},
	"elsewhere":   {Authenticated: true, User: authenticationv1.UserInfo{Username: "judged:carol"}, Audiences: []string{"elsewhere"}},
	"no-audience": {Authenticated: true, User: authenticationv1.UserInfo{Username: "judged:carol"}},
	"masters":     {Authenticated: true, User: authenticationv1.UserInfo{Username: "judged:root", Groups: []string{"system:masters"}}},
	"anonymous":   {Authenticated: true, User: authenticationv1.UserInfo{Username: "system:anonymous", Groups: []string{"system:unauthenticated"}}},
}

func (w *webhooks) authenticate(rw http.ResponseWriter, req *http.Request) {
	var review authenticationv1.TokenReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	name, ok := strings.CutPrefix(review.Spec.Token, "hook-")
	if send, bad := hooks.NoReviews[name]; ok && bad {
		send(rw)
		return
	}
	if name == "hangs" {
		<-req.Context().Done()
		return
	}
	review.Status = users[name]
	if as, ok := strings.CutPrefix(name, "as:"); ok {
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: as}}
	}
	if name != "no-audience" && name != "elsewhere" {
		review.Status.Audiences = review.Spec.Audiences
	}
	reply(rw, review)
}

// authorize decides by the name of the resource, or by the selectors of a list.
func (w *webhooks) authorize(rw http.ResponseWriter, req *http.Request) {
	var review authorizationv1.SubjectAccessReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	status := authorizationv1.SubjectAccessReviewStatus{}
	switch a := review.Spec.ResourceAttributes; {
	case a == nil:
		status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "no path of ours"}
	case hooks.NoReviews[a.Name] != nil:
		hooks.NoReviews[a.Name](rw)
		return
	case a.Name == "hangs":
		<-req.Context().Done()
		return
	case a.Name == "allowed":
		status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "because I say so"}
	case a.Name == "denied":
		status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "because I say so"}
	case a.Name == "no-opinion":
		status.Reason = "I do not care"
	case a.Name == "unsure":
		status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, EvaluationError: "I may be wrong"}
	case a.Name == "contradicts":
		status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true, Reason: "yes and no"}
	case a.Verb == "list":
		status = authorizationv1.SubjectAccessReviewStatus{Allowed: selects(a), Reason: fmt.Sprintf("%+v %+v", a.FieldSelector, a.LabelSelector)}
	}
	review.Status = status
	reply(rw, review)
}

// selects reports whether a list selects objects with the label or the name "mine".
func selects(a *authorizationv1.ResourceAttributes) bool {
	if a.FieldSelector != nil && slices.ContainsFunc(a.FieldSelector.Requirements, func(r metav1.FieldSelectorRequirement) bool {
		return r.Key == "metadata.name" && r.Operator == metav1.FieldSelectorOpIn && slices.Equal(r.Values, []string{"mine"})
	}) {
		return true
	}
	return a.LabelSelector != nil && slices.ContainsFunc(a.LabelSelector.Requirements, func(r metav1.LabelSelectorRequirement) bool {
		return r.Key == "owner" && r.Operator == metav1.LabelSelectorOpIn && slices.Equal(r.Values, []string{"mine"})
	})
}

func reply(w http.ResponseWriter, review any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client may have gone
}

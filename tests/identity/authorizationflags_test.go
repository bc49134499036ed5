package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"

	"triune.dev/tests/cluster"
	"triune.dev/tests/hooks"
)

// recordingWebhook is an authorization webhook for both versions of reviews. It records
// them, and its decision can be changed.
type recordingWebhook struct {
	*webhooks
	mu sync.Mutex
	// asked has the recorded reviews, by the name of their object.
	asked map[string][]authorizationv1.SubjectAccessReview
	// appealAllowed is the decision about objects with the name "appeal".
	appealAllowed bool
}

func newRecordingWebhook() *recordingWebhook {
	c := &recordingWebhook{webhooks: newWebhooks(), asked: map[string][]authorizationv1.SubjectAccessReview{}}
	c.Config.Handler = http.HandlerFunc(c.serve)
	return c
}

func (c *recordingWebhook) serve(rw http.ResponseWriter, req *http.Request) {
	// The versions differ in the name of one field.
	var review struct {
		authorizationv1.SubjectAccessReview
		Spec struct {
			authorizationv1.SubjectAccessReviewSpec
			Group []string `json:"group"`
		} `json:"spec"`
	}
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	received := review.SubjectAccessReview
	received.Spec = review.Spec.SubjectAccessReviewSpec
	if received.APIVersion == authorizationv1beta1.SchemeGroupVersion.String() {
		received.Spec.Groups = review.Spec.Group
	}
	status := authorizationv1.SubjectAccessReviewStatus{}
	if a := received.Spec.ResourceAttributes; a != nil && received.Spec.User == users["judged"].User.Username {
		c.mu.Lock()
		c.asked[a.Name] = append(c.asked[a.Name], received)
		appealAllowed := c.appealAllowed
		c.mu.Unlock()
		if send := hooks.NoReviews[a.Name]; send != nil {
			send(rw)
			return
		}
		switch a.Name {
		case "appeal":
			status.Allowed, status.Reason = appealAllowed, "so it is"
		case "allowed":
			status.Allowed = true
		case "denied":
			status.Denied, status.Reason = true, "because I say so"
		}
	}
	received.Status = status
	reply(rw, received)
}

func (c *recordingWebhook) allowAppeals(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.appealAllowed = yes
}

// reviews removes and returns the recorded reviews about a name.
func (c *recordingWebhook) reviews(name string) []authorizationv1.SubjectAccessReview {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer delete(c.asked, name)
	return c.asked[name]
}

// TestAuthorizationWebhookByFlags checks that the webhook can also be configured by flags,
// after Node and RBAC, for either version of reviews, and that its decisions apply in every
// tier and are cached as long as the flags say.
func TestAuthorizationWebhookByFlags(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1"} {
		t.Run(version, func(t *testing.T) {
			if version != "v1" {
				full(t)
			}
			c := newRecordingWebhook()
			t.Cleanup(c.Close)
			kubeconfig := filepath.Join(t.TempDir(), "webhook.kubeconfig")
			if err := os.WriteFile(kubeconfig, []byte(c.kubeconfig("/")), 0o600); err != nil {
				t.Fatal(err)
			}
			pair := startPair(t, func(config *cluster.Config) {
				tier := builtin(config.Topology)
				config.Flags[tier] = append(slices.DeleteFunc(slices.Clone(config.Flags[tier]), func(flag string) bool {
					return flag == "--authorization-config="+file("authorization.yaml")
				}), "--authorization-mode=Webhook", "--authorization-webhook-config-file="+kubeconfig,
					"--authorization-webhook-version="+version,
					"--authorization-webhook-cache-authorized-ttl=3s", "--authorization-webhook-cache-unauthorized-ttl=1s")
				config.Without = nil // Node and RBAC come first
			})
			testWebhookByFlags(t, pair, c, version)
		})
	}
}

func testWebhookByFlags(t *testing.T, pair []*server, c *recordingWebhook, version string) {
	for name, code := range map[string]int{"allowed": http.StatusNotFound, "denied": http.StatusForbidden, "other": http.StatusForbidden} {
		for _, path := range collections {
			c.reviews(name)
			judged(t, pair, path+"/"+name, code)
			received := c.reviews(name)
			if len(received) != 2 {
				t.Fatalf("%s/%s: the webhook is asked %d times, want once by each server", path, name, len(received))
			}
			for i := range received { // both servers send the same
				if diff := gocmp.Diff(received[0], received[i]); diff != "" || received[i].APIVersion != "authorization.k8s.io/"+version {
					t.Errorf("%s/%s: the webhook is asked %+v (-kube-apiserver +tested):\n%s", path, name, received[i], diff)
				}
			}
			if groups := received[1].Spec.Groups; !slices.Equal(groups, []string{"wheelwrights", "system:authenticated"}) {
				t.Errorf("%s/%s: the webhook is asked about groups %q", path, name, groups)
			}
		}
	}
	for name, code := range map[string]int{"page": http.StatusInternalServerError, "forbidden": http.StatusInternalServerError, "empty": http.StatusForbidden} {
		for _, path := range collections {
			judged(t, pair, path+"/"+name, code)
		}
	}

	await := func(code int) {
		t.Helper()
		for _, path := range collections {
			for _, s := range pair {
				eventually(t, func(ctx context.Context) error {
					a, err := s.send(ctx, credential{token: "hook-judged"}, http.MethodGet, path+"/appeal", "")
					if err == nil && a.Code != code {
						err = fmt.Errorf("%s %s: %+v, want %d", s.cluster.Config.Topology, path, a, code)
					}
					return err
				})
			}
		}
	}
	c.allowAppeals(true)
	await(http.StatusNotFound)
	c.reviews("appeal")
	began := time.Now()
	for range 5 {
		await(http.StatusNotFound)
	}
	// Each server may ask again about each collection after three seconds.
	if n, most := len(c.reviews("appeal")), len(collections)*len(pair)*(1+int(time.Since(began).Seconds())/3); n > most {
		t.Errorf("the webhook is asked %d times although its decision is cached, want at most %d", n, most)
	}
	c.allowAppeals(false)
	await(http.StatusForbidden)
}

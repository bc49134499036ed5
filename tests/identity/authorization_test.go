package identity

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"triune.dev/tests/cluster"
)

// webhookAuthorizer returns the webhook's entry in the configuration. It decides about
// users whose names begin with "judged:", except for their own reviews.
func webhookAuthorizer(failurePolicy string) string {
	return fmt.Sprintf(`- type: Webhook
  name: judge
  webhook:
    timeout: 1s
    authorizedTTL: 1s
    unauthorizedTTL: 1s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: %s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: request.user.startsWith('judged:')
    - expression: "!has(request.resourceAttributes) || request.resourceAttributes.resource != 'selfsubjectreviews'"
`, failurePolicy, file("authorization.kubeconfig"))
}

// authorization returns a configuration in which Node and RBAC follow others.
func authorization(others ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n" +
		strings.Join(others, "") + "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"
}

// collections has a collection of each tier.
var collections = []string{
	"/api/v1/namespaces/default/configmaps",
	"/apis/apiregistration.k8s.io/v1/apiservices",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}

// TestAuthorizationWebhook checks that the webhook's decision applies in every tier, with
// its reason, and that its failure policy applies if it does not answer properly.
func TestAuthorizationWebhook(t *testing.T) {
	for name, code := range map[string]int{
		"allowed":     http.StatusNotFound,
		"denied":      http.StatusForbidden,
		"no-opinion":  http.StatusForbidden,
		"unsure":      http.StatusNotFound,
		"contradicts": http.StatusInternalServerError,
		"page":        http.StatusInternalServerError,
		"broken":      http.StatusInternalServerError,
		"empty":       http.StatusForbidden,
		"another":     http.StatusInternalServerError,
		"redirect":    http.StatusInternalServerError,
		"cut":         http.StatusInternalServerError,
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range collections {
				judgedBy(t, path+"/"+name, code)
			}
		})
	}
	t.Run("hangs", func(t *testing.T) {
		for _, path := range collections {
			judgedBy(t, path+"/hangs", http.StatusInternalServerError)
		}
	})
	t.Run("error", func(t *testing.T) {
		full(t) // retried for seconds
		for _, path := range collections {
			judgedBy(t, path+"/error", http.StatusInternalServerError)
		}
	})
	t.Run("non-resource paths", func(t *testing.T) {
		for _, path := range []string{"/metrics", "/nothing", "/api", "/apis"} {
			sendBoth(t, credential{token: "hook-judged"}, http.MethodGet, path, "", http.StatusForbidden)
		}
	})
	t.Run("other users", func(t *testing.T) {
		for _, path := range collections {
			sendBoth(t, credential{token: "hook-as:other"}, http.MethodGet, path+"/allowed", "", http.StatusForbidden)
			sendBoth(t, credential{token: "hook-masters"}, http.MethodGet, path+"/denied", "", http.StatusNotFound)
		}
	})
}

// judgedBy fails unless a request for path by the user whom the webhook decides about has
// the given code.
func judgedBy(t *testing.T, path string, code int) {
	t.Helper()
	judged(t, servers(), path, code)
}

func judged(t *testing.T, pair []*server, path string, code int) {
	t.Helper()
	carol := credential{token: "hook-judged"}
	if code != http.StatusInternalServerError {
		sendPair(t, pair, carol, http.MethodGet, path, "", code)
		return
	}
	// The text of an error depends on where it happened: timers differ, and a tier that
	// asks core only gets the decision (docs/divergences.md).
	for _, s := range pair {
		a, err := s.send(t.Context(), carol, http.MethodGet, path, "")
		want := code
		if s.cluster.Config.Topology == cluster.Tiers && !strings.HasPrefix(path, collections[0]) {
			want = http.StatusForbidden
		}
		if err != nil || a.Code != want {
			t.Errorf("%s %s: %+v, %v, want %d", s.cluster.Config.Topology, path, a, err, want)
		}
	}
}

// TestSelectorAuthorization checks that the webhook gets the selectors of a list, and so
// can allow lists of certain objects.
func TestSelectorAuthorization(t *testing.T) {
	for _, path := range collections {
		for query, code := range map[string]int{
			"":                                     http.StatusForbidden,
			"?fieldSelector=metadata.name%3Dmine":  http.StatusOK,
			"?fieldSelector=metadata.name%3Dyours": http.StatusForbidden,
			"?fieldSelector=metadata.name!%3Dmine": http.StatusForbidden,
			"?labelSelector=owner%3Dmine":          http.StatusOK,
			"?labelSelector=owner+in+(mine)":       http.StatusOK,
			"?labelSelector=owner+in+(mine,yours)": http.StatusForbidden,
			"?labelSelector=owner+notin+(mine)":    http.StatusForbidden,
			"?labelSelector=%21owner":              http.StatusForbidden,
			"?labelSelector=owner%3Dmine&x=1":      http.StatusOK,
			"?labelSelector=((":                    http.StatusForbidden,
		} {
			sendBoth(t, credential{token: "hook-judged"}, http.MethodGet, path+query, "", code)
		}
	}
}

// TestAuthorizationIsReloaded checks that authorizers follow the file, and that an invalid
// file changes nothing.
func TestAuthorizationIsReloaded(t *testing.T) {
	t.Cleanup(func() { reload(t, "authorization", authorization(webhookAuthorizer("Deny")), "success") })
	await := func(name string, code int) {
		t.Helper()
		for _, path := range collections {
			for _, s := range servers() {
				eventually(t, func(ctx context.Context) error {
					a, err := s.send(ctx, credential{token: "hook-judged"}, http.MethodGet, path+"/"+name, "")
					if err == nil && a.Code != code {
						err = fmt.Errorf("%s: %+v, want %d", path, a, code)
					}
					return err
				})
			}
		}
	}
	await("allowed", http.StatusNotFound)
	reload(t, "authorization", authorization(), "success")
	await("allowed", http.StatusForbidden)
	reload(t, "authorization", authorization(strings.Replace(webhookAuthorizer("NoOpinion"), "'judged:'", "'judged:c'", 1)), "success")
	await("allowed", http.StatusNotFound)
	good := authorization(webhookAuthorizer("Deny"))
	for name, bad := range map[string]string{
		"no YAML":             "authorizers: [",
		"an unknown field":    good + "password: secret\n",
		"invalid expression":  strings.ReplaceAll(good, "request.user", "request.("),
		"no authorizers":      "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: []\n",
		"the same name twice": authorization(webhookAuthorizer("Deny"), webhookAuthorizer("Deny")),
		"no such kubeconfig":  strings.ReplaceAll(good, "authorization.kubeconfig", "absent.kubeconfig"),
		"nothing":             "",
	} {
		t.Run(name, func(t *testing.T) {
			reload(t, "authorization", bad, "failure")
			await("allowed", http.StatusNotFound)
		})
	}
}

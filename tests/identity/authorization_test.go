package identity

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"triune.dev/tests/cluster"
)

// judge is the webhook as it stands in the configuration: it judges the users whose names
// begin with "judged:", about everything but their own reviews.
func judge(failurePolicy string) string {
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

// authorization is a configuration in which Node and RBAC follow others.
func authorization(others ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n" +
		strings.Join(others, "") + "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"
}

// collections has one of each tier.
var collections = []string{
	"/api/v1/namespaces/default/configmaps",
	"/apis/apiregistration.k8s.io/v1/apiservices",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}

// TestAuthorizationWebhook: what the webhook says holds in every tier, with its reason;
// where it says nothing of use, its failure policy does.
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
		full(t) // it is tried again and again, for seconds
		for _, path := range collections {
			judgedBy(t, path+"/error", http.StatusInternalServerError)
		}
	})
	t.Run("paths that are no resources", func(t *testing.T) {
		for _, path := range []string{"/metrics", "/nothing", "/api", "/apis"} {
			both(t, credential{token: "hook-judged"}, http.MethodGet, path, "", http.StatusForbidden)
		}
	})
	t.Run("others are not its business", func(t *testing.T) {
		for _, path := range collections {
			both(t, credential{token: "hook-as:other"}, http.MethodGet, path+"/allowed", "", http.StatusForbidden)
			both(t, credential{token: "hook-masters"}, http.MethodGet, path+"/denied", "", http.StatusNotFound)
		}
	})
}

// judgedBy fails unless the user whom the webhook judges gets the code for a path.
func judgedBy(t *testing.T, path string, code int) {
	t.Helper()
	judged(t, servers(), path, code)
}

func judged(t *testing.T, pair []*server, path string, code int) {
	t.Helper()
	carol := credential{token: "hook-judged"}
	if code != http.StatusInternalServerError {
		alike(t, pair, carol, http.MethodGet, path, "", code)
		return
	}
	// What an error is about is told by whoever met it: timers differ, and a tier that asks
	// core hears only that the answer is no (docs/divergences.md).
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

// TestSelectorAuthorization: the webhook knows which objects a list selects, and so may
// allow the list of some.
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
			both(t, credential{token: "hook-judged"}, http.MethodGet, path+query, "", code)
		}
	}
}

// TestAuthorizationIsReloaded: authorizers change with the file; a file that cannot be
// used changes nothing.
func TestAuthorizationIsReloaded(t *testing.T) {
	t.Cleanup(func() { reload(t, "authorization", authorization(judge("Deny")), "success") })
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
	reload(t, "authorization", authorization(strings.Replace(judge("NoOpinion"), "'judged:'", "'judged:c'", 1)), "success")
	await("allowed", http.StatusNotFound)
	good := authorization(judge("Deny"))
	for name, bad := range map[string]string{
		"no YAML":                    "authorizers: [",
		"an unknown field":           good + "password: secret\n",
		"an expression that is none": strings.ReplaceAll(good, "request.user", "request.("),
		"no authorizers":             "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: []\n",
		"the same name twice":        authorization(judge("Deny"), judge("Deny")),
		"no such kubeconfig":         strings.ReplaceAll(good, "authorization.kubeconfig", "absent.kubeconfig"),
		"nothing":                    "",
	} {
		t.Run(name, func(t *testing.T) {
			reload(t, "authorization", bad, "failure")
			await("allowed", http.StatusNotFound)
		})
	}
}

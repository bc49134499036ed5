package identity

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"triune.dev/tests/hooks"
)

// TestTokenWebhook checks that the webhook's users are accepted, and that any improper
// answer of the webhook is 401.
func TestTokenWebhook(t *testing.T) {
	for name, user := range map[string]string{
		"judged":      "judged:carol",
		"masters":     "judged:root", // the webhook is trusted with any user
		"as:ü<>%2e&":  "ü<>%2e&",
		"yes-error":   "judged:carol",
		"no":          "",
		"no-error":    "",
		"elsewhere":   "",
		"no-audience": "judged:carol", // the webhook does not support audiences
		"no-such":     "",
	} {
		t.Run(name, func(t *testing.T) {
			got := expectUser(t, credential{token: "hook-" + name}, user)
			if name != "judged" {
				return
			}
			want := users[name].User
			want.Groups = append(slices.Clone(want.Groups), "system:authenticated")
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(hooks.NoReviews)) {
		t.Run("answer "+name, func(t *testing.T) {
			if name == "error" {
				full(t) // retried for seconds
			}
			expectUser(t, credential{token: "hook-" + name}, "")
		})
	}
	t.Run("anonymous", func(t *testing.T) { expectAnonymousRefused(t, credential{token: "hook-anonymous"}) })
}

// TestSlowTokenWebhook checks that a review that hangs does not delay other requests.
func TestSlowTokenWebhook(t *testing.T) {
	full(t)
	done := make(chan answer)
	for _, s := range servers() {
		go func() {
			a, err := s.send(t.Context(), credential{token: "hook-hangs"}, http.MethodGet, "/api/v1/namespaces", "")
			if err != nil {
				a.Message = err.Error()
			}
			done <- a
		}()
	}
	expectUser(t, credential{token: "hook-as:quick"}, "quick")
	for range servers() {
		// A tier that asks core reports that it could not.
		if a := <-done; a.Code != http.StatusUnauthorized && a.Code != http.StatusGatewayTimeout && a.Code != http.StatusServiceUnavailable {
			t.Errorf("a token that hangs: %+v", a)
		}
	}
}

package identity

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"triune.dev/tests/hooks"
)

// TestTokenWebhook: users are whom the webhook names, and nobody where it does not answer
// as it should.
func TestTokenWebhook(t *testing.T) {
	for name, user := range map[string]string{
		"judged":      "judged:carol",
		"masters":     "judged:root", // whoever configures a webhook believes it
		"as:ü<>%2e&":  "ü<>%2e&",
		"yes-error":   "judged:carol",
		"no":          "",
		"no-error":    "",
		"elsewhere":   "",
		"no-audience": "judged:carol", // it knows no audiences
		"no-such":     "",
	} {
		t.Run(name, func(t *testing.T) {
			got := everywhere(t, credential{token: "hook-" + name}, user)
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
				full(t) // it is tried again and again, for seconds
			}
			everywhere(t, credential{token: "hook-" + name}, "")
		})
	}
	t.Run("anonymous", func(t *testing.T) { nobody(t, credential{token: "hook-anonymous"}) })
}

// TestSlowTokenWebhook: a token that the webhook does not get done with keeps nobody else
// waiting.
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
	everywhere(t, credential{token: "hook-as:quick"}, "quick")
	for range servers() {
		// A tier that asks core says that it could not ask.
		if a := <-done; a.Code != http.StatusUnauthorized && a.Code != http.StatusGatewayTimeout && a.Code != http.StatusServiceUnavailable {
			t.Errorf("a token that hangs: %+v", a)
		}
	}
}

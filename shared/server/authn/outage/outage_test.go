package outage

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestRefuse(t *testing.T) {
	unauthorized := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	tests := map[string]struct {
		report  []string
		tracked bool
		code    int
		message string
	}{
		"nothing reported":      {nil, true, http.StatusUnauthorized, ""},
		"reported":              {[]string{"core is away", "another outage"}, true, http.StatusServiceUnavailable, "core is away"},
		"reported, not tracked": {[]string{"core is away"}, false, http.StatusUnauthorized, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			refused := Refuse(scheme.Codecs, unauthorized)
			var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				for _, message := range test.report {
					Report(req.Context(), message)
				}
				refused.ServeHTTP(w, req)
			})
			ctx := t.Context()
			if test.tracked {
				ctx = Track(ctx)
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/pods", nil))
			if recorder.Code != test.code {
				t.Fatalf("got %d, want %d", recorder.Code, test.code)
			}
			if test.message == "" {
				return
			}
			if got := recorder.Header().Get("Retry-After"); got != "1" {
				t.Errorf("Retry-After is %q", got)
			}
			var status metav1.Status
			if err := json.Unmarshal(recorder.Body.Bytes(), &status); err != nil {
				t.Fatal(err)
			}
			if status.Reason != metav1.StatusReasonServiceUnavailable || status.Message != test.message {
				t.Errorf("got %+v", status)
			}
		})
	}
}

func TestReportWithoutTrack(*testing.T) { Report(context.Background(), "ignored") }

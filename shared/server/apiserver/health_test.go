package apiserver

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// detailedCheck is a check with details.
type detailedCheck struct{ err error }

func (detailedCheck) Name() string                { return "detailed" }
func (c detailedCheck) Check(*http.Request) error { return c.err }
func (detailedCheck) Detail() string              { return "details\n" }

// TestDetailsOfACheck: details are at the path of the check. In the list of all checks it has
// one line, and it fails like any other.
func TestDetailsOfACheck(t *testing.T) {
	for _, tc := range []struct {
		err         error
		code        int
		path, lines string
	}{
		{nil, http.StatusOK, "ok\ndetails\n", "[+]detailed ok\n"},
		{errors.New("broken"), http.StatusInternalServerError, "internal server error: broken\n", "[-]detailed failed: reason withheld\n"},
	} {
		s := newServer(t, func(c *Config) {
			listen(t, c.Generic)
			c.Generic.AddReadyzChecks(detailedCheck{tc.err})
		})
		r := run(t, s)
		await(t, "the server answers", func() bool { code, _ := r.get("/livez/ping"); return code == http.StatusOK })
		if code, body := r.get("/readyz/detailed"); code != tc.code || body != tc.path {
			t.Errorf("the check is %d %q, want %d %q", code, body, tc.code, tc.path)
		}
		if _, body := r.get("/readyz?verbose"); !strings.Contains(body, tc.lines) || strings.Contains(body, "details") {
			t.Errorf("the list is %q, want a line %q", body, tc.lines)
		}
		r.stop()
		if err := r.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

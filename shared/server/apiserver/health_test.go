package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/healthz"
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

// TestChecksOfTheTiersBehind: a verbose list has them, too, and they decide nothing.
func TestChecksOfTheTiersBehind(t *testing.T) {
	const behind = "[+]ping ok\n[+]poststarthook/bootstrap-controller ok\nreadyz check passed\n"
	for _, tc := range []struct {
		name, query string
		code        int
		body        string // of the next tier
		want        []string
		not         []string
	}{
		{"all pass", "?verbose", 200, behind, []string{"[+]poststarthook/bootstrap-controller ok\n", "[+]own ok\n"}, []string{"warn:"}},
		{"one fails", "?verbose", 500, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n",
			[]string{"[-]etcd failed: reason withheld\n"}, []string{"readyz check failed"}},
		{"one of a name that this tier has fails", "?verbose", 500, "[-]own failed: reason withheld\nreadyz check failed\n",
			[]string{"[+]own ok\n", "[-]core/own failed: reason withheld\n"}, nil},
		{"no answer", "?verbose", 503, `{"kind":"Status"}`, []string{"[-]next-core failed: reason withheld\n"}, nil},
		{"excluded here and there", "?verbose&exclude=own&exclude=poststarthook/bootstrap-controller", 200,
			"[+]poststarthook/bootstrap-controller excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"own\"\nreadyz check passed\n",
			[]string{"[+]own excluded: ok\n", "[+]poststarthook/bootstrap-controller excluded: ok\n"}, []string{"warn:"}},
		{"excluded nowhere", "?verbose&exclude=none-such", 200, behind,
			[]string{"warn: some health checks cannot be excluded: no matches for \"none-such\"\nreadyz check passed\n"}, nil},
		{"short", "?exclude=poststarthook/bootstrap-controller", 200, behind, []string{"ok"}, []string{"bootstrap-controller"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked := make(chan string, 1)
			s := newServer(t, func(c *Config) {
				listen(t, c.Generic)
				c.Generic.AddReadyzChecks(healthz.NamedCheck("own", func(*http.Request) error { return nil }))
				c.Next = &Next{
					Tier:  "core",
					Check: func(*http.Request) error { return nil },
					Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						if req.URL.Path != "/readyz" {
							return
						}
						asked <- req.URL.RequestURI()
						w.WriteHeader(tc.code)
						fmt.Fprint(w, tc.body)
					}),
				}
			})
			r := run(t, s)
			await(t, "the server is ready", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
			code, body := r.get("/readyz" + tc.query)
			if code != http.StatusOK {
				t.Errorf("status %d: %s", code, body)
			}
			for _, want := range tc.want {
				if !strings.Contains(body, want) {
					t.Errorf("no %q in\n%s", want, body)
				}
			}
			for _, not := range tc.not {
				if strings.Contains(body, not) {
					t.Errorf("%q in\n%s", not, body)
				}
			}
			if verbose := strings.Contains(tc.query, "verbose"); verbose != (len(asked) == 1) {
				t.Errorf("the next tier was asked %d times", len(asked))
			}
			r.stop()
			if err := r.wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/cluster"
)

// call is a request to the replica of a tier, not through other tiers.
type call struct {
	to     cluster.Tier
	method string // GET if empty
	path   string
	accept string
	body   string
	// token is shown instead of the administrator's certificate.
	token string
}

// answer is the result of a call. As an error, it contains the request.
type answer struct {
	asked   string
	code    int // 0 if there was none
	header  http.Header
	body    string
	message string // of a metav1.Status
	took    time.Duration
}

func (a answer) Error() string {
	return fmt.Sprintf("%s: %d in %v: %.300s", a.asked, a.code, a.took.Round(time.Millisecond), a.body)
}

func (s *site) ask(t *testing.T, q call) answer {
	t.Helper()
	q.method = cmp.Or(q.method, http.MethodGet)
	a := answer{asked: fmt.Sprintf("%s %s of %s", q.method, q.path, q.to)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, s.c.ReplicaURL(q.to, 0)+q.path, strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", cmp.Or(q.accept, "application/json"))
	client := s.client
	if q.token != "" {
		client = s.plain
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	begin := time.Now()
	defer func() { a.took = time.Since(begin) }()
	res, err := client.Do(req)
	if err != nil {
		a.body, a.took = err.Error(), time.Since(begin)
		return a
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	a.code, a.header, a.body, a.took = res.StatusCode, res.Header, string(data), time.Since(begin)
	if err != nil {
		a.code, a.body = 0, a.body+": "+err.Error()
	}
	var status metav1.Status
	if json.Unmarshal(data, &status) == nil && status.Kind == "Status" {
		a.message = status.Message
	}
	return a
}

func (s *site) get(t *testing.T, tier cluster.Tier, path string) answer {
	t.Helper()
	return s.ask(t, call{to: tier, path: path})
}

// wantOK expects 200 of a tier, or of a tier behind it that owns the path.
func (s *site) wantOK(t *testing.T, tier cluster.Tier, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if a := s.get(t, tier, path); a.code != http.StatusOK {
			t.Errorf("want 200, got %v", a)
		}
	}
}

// wantCreated expects 201 of a new object with the given name.
func (s *site) wantCreated(t *testing.T, tier cluster.Tier, path, name string) {
	t.Helper()
	if a := s.create(t, tier, path, name, ""); a.code != http.StatusCreated {
		t.Errorf("want 201, got %v", a)
	}
}

func (s *site) create(t *testing.T, tier cluster.Tier, path, name, token string) answer {
	t.Helper()
	body := map[string]string{
		ofAggregator: `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.` + name + `.example.com"},"spec":{"group":"` + name + `.example.com","version":"v1","groupPriorityMinimum":10,"versionPriority":10}}`,
		ofCore:       `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`,
		ofExtensions: `{"apiVersion":"outage.triune.dev/v1","kind":"Widget","metadata":{"name":"` + name + `"}}`,
	}[path]
	return s.ask(t, call{to: tier, method: http.MethodPost, path: path + "?timeout=" + impatience.String(), body: body, token: token})
}

// wantUnavailable expects the 503 by which a tier reports that another one is down.
func (s *site) wantUnavailable(t *testing.T, missing cluster.Tier, a answer) {
	t.Helper()
	if a.code != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.message, string(missing)+" tier") || a.took > promptly {
		t.Errorf("want 503 with Retry-After that names the %s tier within %v, got %v", missing, promptly, a)
	}
}

// wantServerError expects an error from the server, in time. As in kube-apiserver (its filter
// WithTimeoutForNonLongRunningRequests), a handler that begins to answer when the timeout of
// the request expires is aborted; earlier, no connection may break.
func (s *site) wantServerError(t *testing.T, a answer) {
	t.Helper()
	broken := a.code == 0 && a.took >= impatience
	if a.code < 500 && !broken || a.took > overdue {
		t.Errorf("want an error of the server within %v, got %v", overdue, a)
	}
}

// slow returns the path with a timeout, which the server must respect.
func slow(path string) string { return path + "?timeout=" + impatience.String() }

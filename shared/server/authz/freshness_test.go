package authz

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// fakeTransport answers requests with bodies that a test ends.
type fakeTransport struct {
	code int
	err  error
	open []*io.PipeWriter
}

func (c *fakeTransport) RoundTrip(*http.Request) (*http.Response, error) {
	if c.err != nil {
		return nil, c.err
	}
	r, w := io.Pipe()
	c.open = append(c.open, w)
	return &http.Response{StatusCode: c.code, Body: r}, nil
}

func watch(t *testing.T, rt http.RoundTripper, path string) io.ReadCloser {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://core"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		return nil
	}
	return res.Body
}

func TestFreshness(t *testing.T) {
	const roles, bindings = "/apis/rbac.authorization.k8s.io/v1/roles?watch=true", "/apis/rbac.authorization.k8s.io/v1/rolebindings?allowWatchBookmarks=true&watch=1"
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	pass := func(d time.Duration) { clock.SetTime(clock.Now().Add(d)) }
	core := &fakeTransport{code: http.StatusOK}
	f := NewFreshness(clock)
	rt := f.WrapTransport(core)
	want := func(age time.Duration, when string) {
		t.Helper()
		if got := f.Age(); got != age {
			t.Errorf("%s: the data is %s old, want %s", when, got, age)
		}
	}

	pass(time.Second)
	want(time.Second, "before the first watch")
	watch(t, rt, "/apis/rbac.authorization.k8s.io/v1/clusterroles?watch=true")
	watch(t, rt, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?watch=true")
	want(time.Second, "while only some are watched")
	a := watch(t, rt, roles)
	b := watch(t, rt, bindings)
	pass(time.Hour)
	want(0, "while all are watched")

	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	pass(time.Minute)
	want(time.Minute, "after the client has ended one")
	if err := core.open[3].CloseWithError(errors.New("connection lost")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Fatal("read from a lost connection")
	}
	pass(time.Minute)
	want(2*time.Minute, "after the server has ended another")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	want(2*time.Minute, "after closing one that had ended")

	core.code = http.StatusForbidden
	watch(t, rt, roles)
	core.err = errors.New("connection refused")
	watch(t, rt, roles)
	want(2*time.Minute, "after refused watches")

	core.code, core.err = http.StatusOK, nil
	watch(t, rt, roles)
	want(time.Minute, "when one kind is watched again")
	watch(t, rt, bindings)
	want(0, "when all are watched again")

	// A watch may be replaced by a new one before it ends.
	c := watch(t, rt, roles)
	pass(time.Minute)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	pass(time.Minute)
	want(0, "while another watch of the same resource is open")
}

func TestOnlyWatchesOfRulesCount(t *testing.T) {
	for _, path := range []string{
		"/apis/rbac.authorization.k8s.io/v1/roles",
		"/apis/rbac.authorization.k8s.io/v1/roles?watch=false",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles?watch=true",
		"/apis/rbac.authorization.k8s.io/v1/things?watch=true",
		"/api/v1/pods?watch=true",
	} {
		clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
		f := NewFreshness(clock)
		rt := f.WrapTransport(&fakeTransport{code: http.StatusOK})
		for _, other := range []string{"clusterroles", "clusterrolebindings", "rolebindings"} {
			watch(t, rt, "/apis/rbac.authorization.k8s.io/v1/"+other+"?watch=true")
		}
		watch(t, rt, path)
		clock.SetTime(time.Unix(1001, 0))
		if f.Age() != time.Second {
			t.Errorf("%s counts as a watch of rules", strings.TrimPrefix(path, "/apis/"))
		}
	}
}

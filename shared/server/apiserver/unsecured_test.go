package apiserver

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TestUnsecured: at the port without authentication everybody is system:unsecured, whatever
// the request says, and web pages are refused. The other port still authenticates.
func TestUnsecured(t *testing.T) {
	var users recorder
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		c.Unsecured = listener
		c.Generic.Authorization.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			users.add(a.GetUser().GetName() + " " + strings.Join(a.GetUser().GetGroups(), ","))
			return authorizer.DecisionAllow, "", nil
		})
	})
	r := run(t, s)
	await(t, "the server is ready", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, host string
		header     http.Header
		code       int
	}{
		{"the address", "127.0.0.1:" + port, nil, 200},
		{"localhost", "localhost:" + port, nil, 200},
		{"the address of IPv6", "[::1]:" + port, nil, 200},
		{"somebody says to be another", "localhost:" + port, http.Header{"Authorization": {"Bearer x"}, "X-Remote-User": {"eve"}}, 200},
		{"a name of a page", "evil.example:" + port, nil, 403},
		{"an address of the network", "10.0.0.1:" + port, nil, 403},
		{"a page", "localhost:" + port, http.Header{"Origin": {"http://evil.example"}}, 403},
		{"a page without an origin", "localhost:" + port, http.Header{"Origin": {"null"}}, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := len(users.all())
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+"/version", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = tc.host
			for name, values := range tc.header {
				req.Header[name] = values
			}
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, _ := io.ReadAll(resp.Body); resp.StatusCode != tc.code {
				t.Errorf("status %d, want %d: %s", resp.StatusCode, tc.code, body)
			}
			for _, got := range users.all()[before:] {
				if want := "system:unsecured system:masters,system:authenticated"; tc.code == 200 && got != want {
					t.Errorf("the user is %q, want %q", got, want)
				}
			}
			if asked := len(users.all()) > before; asked != (tc.code == 200) {
				t.Errorf("authorization was asked: %t", asked)
			}
		})
	}
	before := len(users.all())
	if code, _ := r.get("/version"); code != http.StatusOK || !strings.HasPrefix(users.all()[before], "ann ") {
		t.Errorf("the other port: %d for %q", code, users.all()[before:])
	}
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if conn, err := net.Dial("tcp", listener.Addr().String()); err == nil {
		conn.Close()
		t.Error("the port is still open")
	}
}

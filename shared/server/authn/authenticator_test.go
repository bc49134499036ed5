package authn

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/shared/process/pki"
)

func TestIdentities(t *testing.T) {
	f := newFixture(t, nil)
	none := pki.Pair{}
	asserted := http.Header{
		"X-Remote-User": {"carol"}, "X-Remote-Uid": {"carol-uid"},
		"X-Remote-Group": {"g1", "g2"}, "X-Remote-Extra-Scopes%2fx": {"read"},
	}
	anonymous := identity{Status: 200, Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}
	refused := identity{Status: 401}
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	with := func(headers ...http.Header) http.Header {
		merged := http.Header{}
		for _, h := range headers {
			for name, values := range h {
				merged[name] = values
			}
		}
		return merged
	}
	alice := identity{Status: 200, Name: "alice", Groups: []string{"developers", "system:authenticated"}}
	carol := identity{
		Status: 200, Name: "carol", UID: "carol-uid", Groups: []string{"g1", "g2", "system:authenticated"},
		Extra: map[string][]string{"scopes/x": {"read"}},
	}
	bob := identity{Status: 200, Name: "bob", UID: "bob-uid", Groups: []string{"auditors", "operators", "system:authenticated"}}
	robot := identity{Status: 200, Name: "system:serviceaccount:default:robot", UID: "robot-uid", Groups: []string{"system:serviceaccounts", "system:authenticated"}}

	tests := map[string]struct {
		client pki.Pair
		header http.Header
		want   identity
	}{
		"no credential":                            {none, nil, anonymous},
		"client certificate":                       {f.pki.Clients["alice"], nil, alice},
		"client certificate of an unknown CA":      {f.pki.Clients["stranger"], nil, refused},
		"front proxy with a user":                  {f.pki.FrontProxyClient, asserted, carol},
		"front proxy with a configured header":     {f.pki.FrontProxyClient, http.Header{"X-Our-User": {"dave"}}, identity{Status: 200, Name: "dave", Groups: []string{"system:authenticated"}}},
		"front proxy without a user":               {f.pki.FrontProxyClient, nil, refused},
		"front proxy with an empty user":           {f.pki.FrontProxyClient, http.Header{"X-Remote-User": {""}}, refused},
		"front proxy with groups but no user":      {f.pki.FrontProxyClient, http.Header{"X-Remote-Group": {"system:masters"}}, refused},
		"front proxy without a user, with a token": {f.pki.FrontProxyClient, bearer(staticToken), refused},
		"front-proxy CA but a wrong name":          {f.pki.Clients["wrong-proxy"], asserted, refused},
		"front-proxy CA, wrong name, no headers":   {f.pki.Clients["wrong-proxy"], nil, refused},
		"client CA with the front proxy's name":    {f.pki.Clients["named-proxy"], asserted, identity{Status: 200, Name: pki.FrontProxyClientName, Groups: []string{"system:authenticated"}}},
		"forged headers without a certificate":     {none, asserted, anonymous},
		"forged headers with a client certificate": {f.pki.Clients["alice"], asserted, alice},
		"forged headers with a token":              {none, with(asserted, bearer(staticToken)), bob},
		"static token":                             {none, bearer(staticToken), bob},
		"token that core knows":                    {none, bearer(serviceAccountToken), robot},
		"unknown token":                            {none, bearer("nonsense"), refused},
		"certificate before token":                 {f.pki.Clients["alice"], bearer(staticToken), alice},
		"bad certificate, good token":              {f.pki.Clients["stranger"], bearer(staticToken), bob},
		"malformed Authorization is no credential": {none, http.Header{"Authorization": {"Basic eDp5"}}, anonymous},
		"other case of a header":                   {f.pki.FrontProxyClient, http.Header{"X-Remote-User": {"erin"}, "X-Remote-Extra-A": {"1"}}, identity{Status: 200, Name: "erin", Groups: []string{"system:authenticated"}, Extra: map[string][]string{"a": {"1"}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, f.ask(t, test.client, test.header)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestWebSocketToken: browsers send the token as a subprotocol.
func TestWebSocketToken(t *testing.T) {
	f := newFixture(t, nil)
	encoded := base64.RawURLEncoding.EncodeToString([]byte(staticToken))
	req := httptest.NewRequest(http.MethodGet, "/apis/example.com/v1/things", nil)
	req.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
		"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io." + encoded + ", v5.channel.k8s.io"},
	}
	recorder := httptest.NewRecorder()
	f.server.Config.Handler.ServeHTTP(recorder, req)
	var got identity
	if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil || got.Name != "bob" {
		t.Errorf("got %d %s (%v), want bob", recorder.Code, recorder.Body, err)
	}
	if got := req.Header.Get("Sec-Websocket-Protocol"); strings.Contains(got, encoded) {
		t.Errorf("the token is still in %q", got)
	}
}

// TestCAReload replaces the file of the client CA, as a rotation does.
func TestCAReload(t *testing.T) {
	f := newFixture(t, nil)
	other, err := pki.Ensure(t.TempDir(), pki.Options{Clients: []pki.Client{{Name: "alice", CommonName: "alice"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.ask(t, other.Clients["alice"], nil); got.Status != http.StatusUnauthorized {
		t.Fatalf("before: got %+v, want 401", got)
	}
	bundle, err := os.ReadFile(other.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.clientCAFile, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	// Secure serving reloads while it runs.
	if err := f.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.ask(t, other.Clients["alice"], nil); got.Status != http.StatusOK {
		t.Errorf("after: got %+v, want 200", got)
	}
}

// TestFrontProxyWithoutUserOrNames: if no names are configured, every certificate of the
// front-proxy CA belongs to a front proxy.
func TestFrontProxyWithoutUserOrNames(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.RequestHeader.AllowedNames = nil })
	for _, header := range []http.Header{nil, {"Authorization": {"Bearer " + staticToken}}} {
		if got := f.ask(t, f.pki.Clients["wrong-proxy"], header); got.Status != http.StatusUnauthorized {
			t.Errorf("with %v: got %+v, want 401", header, got)
		}
	}
}

package authn

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"triune.dev/shared/transport/handover"
)

// authenticate returns the user of a request, and the kind of the result.
func authenticate(a authenticator.Request, req *http.Request) (u *user.DefaultInfo, result string) {
	response, ok, err := a.AuthenticateRequest(req)
	switch {
	case err != nil:
		return nil, "error"
	case !ok:
		return nil, "nobody"
	}
	info := response.User
	return &user.DefaultInfo{Name: info.GetName(), UID: info.GetUID(), Groups: info.GetGroups(), Extra: info.GetExtra()}, "user"
}

// FuzzHandOver sends arbitrary credentials to core, directly and handed over by the
// aggregator: core must authenticate the same user.
func FuzzHandOver(f *testing.F) {
	fixture := newTierFixture(f, []string{"our-proxy"}, "aggregator")
	direct := AuthenticateTiers(fixture.tiers.next, fixture.tiers.proxies.config)
	chains := [][]*x509.Certificate{
		nil, fixture.chain(f, "alice"), fixture.chain(f, "proxy"), fixture.chain(f, "forged"), fixture.chain(f, "stranger"),
		newTLSRequest(f, fixture.pki.Tier["extensions"], nil).TLS.PeerCertificates,
		newTLSRequest(f, fixture.pki.Tier["aggregator"], nil).TLS.PeerCertificates,
		slices.Concat(fixture.chain(f, "alice"), fixture.chain(f, "proxy")),
	}
	protocol := "base64url.bearer.authorization.k8s.io."
	for who := range chains {
		f.Add(uint8(who), "Bearer "+staticToken, "", "X-Remote-User", "admin", "X-Remote-Group", "system:masters")
		f.Add(uint8(who), "", "v4.channel.k8s.io, "+protocol+"c3RhdGlj", "X-Remote-Extra-Scopes", "a, b", "x-remote-user", " carol ")
	}
	f.Add(uint8(0), "bearer wrong", "", handover.CertificatesHeader, "", "X-Remote-Client-Asserted", "X-Remote-User=admin")
	f.Add(uint8(1), "Basic YTpi", protocol+"=,"+protocol, handover.CertificatesHeader, "bm9uZQ==", "X-Remote-Uid", "0")
	f.Add(uint8(2), "Bearer", "", "X-Remote-User", "", "X-Remote-User", "é\xff%")
	f.Fuzz(func(t *testing.T, who uint8, authorization, protocols, one, value, two, other string) {
		req := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
		req.TLS = &tls.ConnectionState{PeerCertificates: chains[int(who)%len(chains)]}
		req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
		for _, header := range [][2]string{{one, value}, {two, other}, {"Authorization", authorization}, {"Sec-Websocket-Protocol", protocols}} {
			if header[1] != "" {
				req.Header.Add(header[0], header[1])
			}
		}
		// The aggregator sends its own certificate, and no identity headers except those that
		// hand over the credential.
		header := http.Header{}
		for name, values := range req.Header {
			if !strings.HasPrefix(http.CanonicalHeaderKey(name), "X-Remote-") && name != "Authorization" && name != "Sec-Websocket-Protocol" {
				header[name] = values
			}
		}
		handover.FromRequest(req, fixture.tiers.proxies.AssertedHeaders(req)).SetHeaders(header)
		wantUser, want := authenticate(direct, again(req))
		if _, tier := fixture.tiers.proxies.tierOf(req); tier && want == "error" {
			return // the aggregator refuses tiers as clients
		}
		for range 2 { // the second time from the cache
			gotUser, got := authenticate(fixture.core, newTLSRequest(t, fixture.pki.Tier["aggregator"], header.Clone()))
			if diff := cmp.Diff(wantUser, gotUser); diff != "" || got != want {
				t.Errorf("%q: %s, want %s (-direct +handed over):\n%s", req.Header, got, want, diff)
			}
		}
	})
}

// FuzzConfiguration reads arbitrary files as an AuthenticationConfiguration. A file is
// refused, or its configuration survives encoding and decoding.
func FuzzConfiguration(f *testing.F) {
	for _, text := range []string{
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /livez}]}\n",
		"apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: https://a.example, audiences: [b], audienceMatchPolicy: MatchAny}\n" +
			"  claimMappings: {username: {expression: 'claims.sub'}, groups: {claim: groups, prefix: ''}, extra: [{key: a.example/b, valueExpression: claims.c}]}\n" +
			"  claimValidationRules: [{expression: 'claims.d == \"e\"', message: f}]\n  userValidationRules: [{expression: \"!user.username.startsWith('system:')\"}]\n",
		`{"apiVersion":"apiserver.config.k8s.io/v1alpha1","kind":"AuthenticationConfiguration","jwt":[{"issuer":{"url":"x"},"claimMappings":{"username":{"claim":"sub","prefix":null}}}]}`,
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymus: {}\n", "apiVersion: v1\nkind: List\nitems: &a [*a]\n", "kind: AuthenticationConfiguration", "---", "\x00",
	} {
		f.Add([]byte(text))
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(apiserverv1.SchemeGroupVersion)
	file := filepath.Join(f.TempDir(), "authentication.yaml")
	read := func(t *testing.T, data []byte) (configuration, bool) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := loadConfiguration(file, false)
		return c, err == nil
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, ok := read(t, data)
		if !ok {
			return
		}
		config, err := readConfiguration(file)
		if err != nil {
			t.Fatal(err)
		}
		written, err := runtime.Encode(codec, config)
		if err != nil {
			t.Fatal(err)
		}
		second, ok := read(t, written)
		if !ok || !equality.Semantic.DeepEqual(first.issuers, second.issuers) || !equality.Semantic.DeepEqual(first.anonymous, second.anonymous) || first.fromFile != second.fromFile {
			t.Errorf("%q is written as %q, which is read as (-first +second):\n%s", data, written,
				cmp.Diff([]any{first.issuers, first.anonymous, first.fromFile}, []any{second.issuers, second.anonymous, second.fromFile}))
		}
	})
}

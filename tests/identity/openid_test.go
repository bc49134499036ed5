package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"

	"triune.dev/tests/tokens"
)

// openPaths are the paths that allow anonymous requests: the probes of this suite, and what
// a joining node reads first.
var openPaths = []string{"/livez", "/readyz", "/api/v1/namespaces/kube-public/configmaps/cluster-info"}

// authentication returns a configuration with these issuers.
func authentication(issuers ...string) string {
	var conditions []string
	for _, path := range openPaths {
		conditions = append(conditions, "{path: "+path+"}")
	}
	return `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [` + strings.Join(conditions, ", ") + `]}
jwt:
` + strings.Join(issuers, "")
}

// issuers returns the issuers with which the servers start.
func issuers() []string { return []string{issuerOne("one:"), issuerTwo()} }

// issuerOne returns an issuer that maps claims by expressions and has validation rules.
func issuerOne(prefix string) string {
	return fmt.Sprintf(`- issuer:
    url: %s
    audiences: [triune, triad]
    audienceMatchPolicy: MatchAny
    certificateAuthority: %q
  claimValidationRules:
  - {claim: tenant, requiredValue: acme}
  - {expression: "!has(claims.suspended) || !claims.suspended", message: the account is suspended}
  claimMappings:
    username: {expression: "'%s' + claims.sub"}
    groups: {expression: "claims.roles.split(',').map(r, '%s' + r)"}
    uid: {expression: "claims.employee"}
    extra: [{key: example.com/floor, valueExpression: "string(claims.office.floor)"}]
  userValidationRules:
  - {expression: "!user.username.endsWith('root')", message: there is no root}
`, site.one.URL, site.one.CA(), prefix, prefix)
}

// issuerTwo returns an issuer that maps claims by their names.
func issuerTwo() string {
	return fmt.Sprintf(`- issuer: {url: %s, audiences: [triune], certificateAuthority: %q}
  claimMappings:
    username: {claim: email, prefix: "two:"}
    groups: {claim: groups, prefix: "two:"}
`, site.two.URL, site.two.CA())
}

// tokenOf returns a token of an issuer.
func tokenOf(t *testing.T, issuer *tokens.Issuer, claims map[string]any) credential {
	t.Helper()
	token, err := issuer.Token(claims)
	if err != nil {
		t.Fatal(err)
	}
	return credential{token: token}
}

// carol returns the claims of a user of issuer one, with changes; nil removes a claim.
func carol(changes map[string]any) map[string]any {
	claims := map[string]any{
		"sub": "carol", "aud": "triune", "tenant": "acme", "roles": "driver,wheelwright", "employee": "e-7", "office": map[string]any{"floor": 3},
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

// dave returns the claims of a user of issuer two, with changes.
func dave(changes map[string]any) map[string]any {
	claims := map[string]any{"sub": "d", "aud": []string{"else", "triune"}, "email": "dave@example.com", "email_verified": true, "groups": []string{"a", "b"}}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

// TestIssuers checks the users of two issuers, one with expressions and one with names of
// claims.
func TestIssuers(t *testing.T) {
	got := expectUser(t, tokenOf(t, site.one, carol(nil)), "one:carol")
	want := authenticationv1.UserInfo{
		Username: "one:carol", UID: "e-7", Groups: []string{"one:driver", "one:wheelwright", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"example.com/floor": {"3"}},
	}
	delete(got.Extra, "authentication.kubernetes.io/credential-id")
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("carol (-want +got):\n%s", diff)
	}
	got = expectUser(t, tokenOf(t, site.two, dave(nil)), "two:dave@example.com")
	if want := []string{"two:a", "two:b", "system:authenticated"}; !gocmp.Equal(got.Groups, want) {
		t.Errorf("groups of dave: %q, want %q", got.Groups, want)
	}
	expectUser(t, tokenOf(t, site.one, carol(map[string]any{"aud": "triad"})), "one:carol")
	expectUser(t, tokenOf(t, site.one, carol(map[string]any{"sub": "Ünïcødé <&>%2e"})), "one:Ünïcødé <&>%2e")
}

// TestBadTokens checks that a token that is expired, forged, misdirected or breaks the
// rules of its issuer is 401 in every tier, and never anonymous.
func TestBadTokens(t *testing.T) {
	hour := time.Hour
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	for name, c := range map[string]credential{
		"expired":                    tokenOf(t, site.one, carol(map[string]any{"iat": at(-hour), "exp": at(-time.Minute)})),
		"not valid yet":              tokenOf(t, site.one, carol(map[string]any{"nbf": at(hour)})),
		"of another audience":        tokenOf(t, site.one, carol(map[string]any{"aud": "elsewhere"})),
		"of no audience":             tokenOf(t, site.one, carol(map[string]any{"aud": nil})),
		"of an audience of one only": tokenOf(t, site.two, dave(map[string]any{"aud": "triad"})),
		"of an unknown issuer":       tokenOf(t, site.one, carol(map[string]any{"iss": "https://issuer.example"})),
		"of another issuer's key":    tokenOf(t, site.two, carol(map[string]any{"iss": site.one.URL})),
		"of the server's own issuer": tokenOf(t, site.one, carol(map[string]any{"iss": "https://kubernetes.default.svc.cluster.local"})),
		"of another tenant":          tokenOf(t, site.one, carol(map[string]any{"tenant": "evil"})),
		"of no tenant":               tokenOf(t, site.one, carol(map[string]any{"tenant": nil})),
		"suspended":                  tokenOf(t, site.one, carol(map[string]any{"suspended": true})),
		"of a user that is refused":  tokenOf(t, site.one, carol(map[string]any{"sub": "root"})),
		"without what is mapped":     tokenOf(t, site.one, carol(map[string]any{"office": nil})),
		"with another type":          tokenOf(t, site.one, carol(map[string]any{"roles": 7})),
		"without a user":             tokenOf(t, site.two, dave(map[string]any{"email": nil})),
		"with an unverified address": tokenOf(t, site.two, dave(map[string]any{"email_verified": false})),
		"unsigned":                   {token: resigned(t, `{"alg":"none"}`, "")},
		"unsigned, spelt otherwise":  {token: resigned(t, `{"alg":"NonE","kid":"1"}`, "")},
		"signed with its public key": {token: resigned(t, `{"alg":"HS256","kid":"1"}`, "c2lnbmVk")},
		"signed by a key it brings":  {token: resigned(t, `{"alg":"RS256","jwk":{"kty":"oct","k":"AAAA"}}`, "c2lnbmVk")},
		"with other claims":          {token: tampered(t)},
		"cut":                        {token: strings.TrimRight(tokenOf(t, site.one, carol(nil)).token, "=ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")[:400]},
		"of many parts":              {token: strings.Repeat("a.", 1000)},
		"oversized":                  tokenOf(t, site.two, carol(map[string]any{"iss": site.one.URL, "padding": strings.Repeat("x", 300<<10)})),
		"oversized rubbish":          {token: strings.Repeat("x", 500<<10)},
		"of spaces":                  {headers: map[string]string{"Authorization": "Bearer  " + tokenOf(t, site.one, carol(nil)).token}},
		"nobody's":                   {token: "no-such-token"},
		"beside a good one":          {token: "no-such-token", headers: map[string]string{"Authorization": "Bearer " + tokenOf(t, site.one, carol(nil)).token}},
	} {
		t.Run(name, func(t *testing.T) { expectUser(t, c, "") })
	}
}

// resigned returns a token of carol with another header and signature.
func resigned(t *testing.T, header, signature string) string {
	t.Helper()
	parts := strings.Split(tokenOf(t, site.one, carol(nil)).token, ".")
	return encoded([]byte(header)) + "." + parts[1] + "." + signature
}

// tampered returns a token of carol with another user's name.
func tampered(t *testing.T) string {
	t.Helper()
	parts := strings.Split(tokenOf(t, site.one, carol(nil)).token, ".")
	claims, err := json.Marshal(carol(map[string]any{"iss": site.one.URL, "sub": "mallory", "exp": time.Now().Add(time.Hour).Unix()}))
	if err != nil {
		t.Fatal(err)
	}
	return parts[0] + "." + encoded(claims) + "." + parts[2]
}

// TestKeysRotate checks that a token of a new key is accepted at once, and that afterwards
// one of the old key, which no server has cached, is refused.
func TestKeysRotate(t *testing.T) {
	// It must differ from tokens of the same second that earlier tests have sent, which are
	// cached.
	old := tokenOf(t, site.one, carol(map[string]any{"nonce": "before the rotation"}))
	if err := site.one.Rotate(); err != nil {
		t.Fatal(err)
	}
	for _, s := range servers() {
		for _, url := range s.replicas() { // each replica fetches the keys when it meets an unknown one
			a, err := s.sendTo(t.Context(), url, tokenOf(t, site.one, carol(nil)), http.MethodGet, "/api", "")
			if err != nil || a.Code != http.StatusOK {
				t.Errorf("%s: %+v, %v", url, a, err)
			}
		}
	}
	expectUser(t, tokenOf(t, site.one, carol(nil)), "one:carol")
	expectUser(t, old, "")
}

// TestAuthenticationIsReloaded checks that issuers follow the file without a restart, and
// that an invalid file changes nothing.
func TestAuthenticationIsReloaded(t *testing.T) {
	t.Cleanup(func() { reload(t, "authentication", authentication(issuers()...), "success") })
	reload(t, "authentication", authentication(issuerOne("uno:")), "success")
	await := func(c credential, user string) {
		t.Helper()
		for _, s := range servers() {
			eventually(t, func(ctx context.Context) error {
				a, err := s.identify(ctx, c)
				if err == nil && a.User.Username != user {
					err = fmt.Errorf("%+v, want the user %q", a, user)
				}
				return err
			})
		}
		expectUser(t, c, user)
	}
	await(tokenOf(t, site.one, carol(nil)), "uno:carol")
	await(tokenOf(t, site.two, dave(nil)), "")

	good := authentication(issuers()...)
	for name, bad := range map[string]string{
		"no YAML":               "jwt: [",
		"an unknown field":      good + "password: secret\n",
		"invalid expression":    strings.ReplaceAll(good, "claims.sub", "claims.("),
		"the same issuer twice": authentication(issuerOne("uno:"), issuerOne("uno:")),
		"another kind":          "apiVersion: v1\nkind: ConfigMap\n",
		"others are anonymous":  strings.ReplaceAll(good, "{path: /livez}, ", ""),
		"nothing":               "",
	} {
		t.Run(name, func(t *testing.T) {
			reload(t, "authentication", bad, "failure")
			expectUser(t, tokenOf(t, site.one, carol(nil)), "uno:carol")
			expectUser(t, tokenOf(t, site.two, dave(nil)), "")
		})
	}
}

// TestAnonymousByPath checks that a request without a credential is allowed on the paths of
// the configuration only, and one with an invalid credential on none.
func TestAnonymousByPath(t *testing.T) {
	for _, path := range []string{"/livez", "/readyz"} {
		sendBoth(t, credential{}, http.MethodGet, path, "", http.StatusOK)
		sendBoth(t, credential{token: "wrong"}, http.MethodGet, path, "", http.StatusUnauthorized)
	}
	sendBoth(t, credential{}, http.MethodGet, "/api/v1/namespaces/kube-public/configmaps/cluster-info", "", http.StatusForbidden)
	for _, path := range []string{
		"/", "/healthz", "/livez/", "/livez/ping", "/livez/../api", "//livez", "/livez%2f", "/LIVEZ", "/version", "/api", "/apis", "/openapi/v2", "/nothing",
		"/api/v1/namespaces", "/api/v1/namespaces/kube-public/configmaps", "/apis/none.example/v1/things", "/metrics",
		"/apis/apiregistration.k8s.io/v1/apiservices", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	} {
		sendBoth(t, credential{}, http.MethodGet, path, "", http.StatusUnauthorized)
	}
	expectUser(t, credential{}, "")
	expectUser(t, credential{headers: map[string]string{"Impersonate-User": "kubernetes-admin"}}, "")
	expectUser(t, credential{headers: map[string]string{"X-Portal-User": "kubernetes-admin", "X-Remote-User": "kubernetes-admin", "X-Portal-Group": "system:masters"}}, "")
}

package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"

	"triune.dev/tests/cluster"
	"triune.dev/tests/tokens"
)

// startPair starts a reference and servers under test with a changed configuration; they
// end with the test.
func startPair(t *testing.T, change func(*cluster.Config)) []*server {
	t.Helper()
	var pair []*server
	for _, topology := range []cluster.Topology{cluster.KubeAPIServer, cluster.Topology(*target)} {
		config := configured(topology)
		change(&config)
		s, err := newServer(cluster.Run(t, config))
		if err != nil {
			t.Fatal(err)
		}
		pair = append(pair, s)
	}
	return pair
}

// builtin returns the tier that serves the built-in resources.
func builtin(topology cluster.Topology) cluster.Tier {
	if topology == cluster.Tiers {
		return cluster.Core
	}
	return cluster.Tier(topology)
}

// TestExternalSigner checks that a server without its own key has tokens signed by a signer
// (KEP-740), verifies them with the signer's keys, and publishes these.
func TestExternalSigner(t *testing.T) {
	signer, err := tokens.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := signer.Close(); err != nil {
			t.Error(err)
		}
	})
	pair := startPair(t, func(config *cluster.Config) {
		config.Without = append(config.Without, "--service-account-key-file", "--service-account-signing-key-file")
		if config.Topology == cluster.Triune {
			config.Without = append(config.Without, "--service-account-issuer") // the server has a default
		}
		tier := builtin(config.Topology)
		config.Flags[tier] = append(config.Flags[tier], "--service-account-signing-endpoint="+signer.Socket)
	})
	const namespace, worker = "signed", "system:serviceaccount:signed:worker"
	issue := func(s *server) string {
		t.Helper()
		before := signer.Signed()
		token := request(t, s, namespace, authenticationv1.TokenRequestSpec{})
		if signer.Signed() != before+1 {
			t.Errorf("%s: the signer has signed %d tokens", s.cluster.Config.Topology, signer.Signed()-before)
		}
		return token
	}
	first, err := pair[0].keyIDs(t, pair[0].replicas()[0])
	if err != nil || len(first) != 1 {
		t.Fatalf("published keys %q, %v", first, err)
	}
	var old []string
	for _, s := range pair {
		account(t, s, namespace)
		old = append(old, issue(s))
		s.expect(t, old[len(old)-1], worker)
		s.expectLife(t, namespace)
	}

	second, err := signer.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	var fresh []string
	for i, s := range pair {
		token := issue(s)
		fresh = append(fresh, token)
		if id := keyOf(t, token); id != second {
			t.Errorf("%s: a token is signed with %s, want %s", s.cluster.Config.Topology, id, second)
		}
		s.expect(t, token, worker) // although its key is unknown
		s.expect(t, old[i], worker)
		s.expect(t, token[:len(token)-8]+"AAAAAAAA", "")
		s.publishes(t, append(slices.Clone(first), second)...)
	}

	// A key that is no longer published still verifies tokens.
	signer.Hide(second, true)
	for i, s := range pair {
		s.publishes(t, first...)
		s.expect(t, fresh[i], worker)
	}
	refuse(t, pair, tokenPath(namespace), http.StatusInternalServerError, "excluded from OIDC discovery docs")
	signer.Hide(second, false)
	for _, s := range pair {
		s.publishes(t, append(slices.Clone(first), second)...)
	}

	signer.Forget(first[0])
	for i, s := range pair {
		s.publishes(t, second)
		s.expect(t, old[i], "")
		s.expect(t, fresh[i], worker)
	}

	if err := signer.Stop(); err != nil {
		t.Fatal(err)
	}
	for i, s := range pair {
		// Which timeout ends first decides the message.
		a, err := s.send(t.Context(), credential{certificate: load(t, site.pki.Admin)}, http.MethodPost, tokenPath(namespace)+"?timeout=2s", tokenRequest)
		if err != nil || a.Code != http.StatusGatewayTimeout {
			t.Errorf("%s: a token while the signer is down: %+v, %v, want 504", s.cluster.Config.Topology, a, err)
		}
		s.expect(t, fresh[i], worker)
		s.publishes(t, second)
	}
	if err := signer.Start(); err != nil {
		t.Fatal(err)
	}
	for _, s := range pair {
		eventually(t, func(ctx context.Context) error {
			a, err := s.send(ctx, credential{certificate: load(t, site.pki.Admin)}, http.MethodPost, tokenPath(namespace), tokenRequest)
			if err == nil && a.Code != http.StatusCreated {
				err = fmt.Errorf("%s: %+v", s.cluster.Config.Topology, a)
			}
			return err
		})
		s.expect(t, issue(s), worker)
	}
}

const tokenRequest = `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}`

func tokenPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/serviceaccounts/worker/token"
}

// refuse fails unless all servers refuse to issue a token, with the same message.
func refuse(t *testing.T, pair []*server, path string, code int, text string) {
	t.Helper()
	a := sendPair(t, pair, credential{certificate: load(t, site.pki.Admin)}, http.MethodPost, path, tokenRequest, code)
	if !strings.Contains(a.Message, text) {
		t.Errorf("a token: %+v, want %q", a, text)
	}
}

// expectLife fails unless a token with a long requested life gets the longest life that the
// signer allows.
func (s *server) expectLife(t *testing.T, namespace string) {
	t.Helper()
	day := int64((24 * time.Hour).Seconds())
	token, err := jwt.ParseSigned(request(t, s, namespace, authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}))
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := token.UnsafeClaimsWithoutVerification(&claims); err != nil {
		t.Fatal(err)
	}
	if life := claims.Expiry.Time().Sub(claims.IssuedAt.Time()); life != tokens.MaxLife {
		t.Errorf("%s: a token lives for %v, want %v", s.cluster.Config.Topology, life, tokens.MaxLife)
	}
}

// keyOf returns the ID of the key that signed a token.
func keyOf(t *testing.T, token string) string {
	t.Helper()
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Headers[0].KeyID
}

// keyIDs returns the IDs of the keys that a replica publishes.
func (s *server) keyIDs(t *testing.T, url string) ([]string, error) {
	t.Helper()
	resp, err := s.client(load(t, site.pki.Admin)).Get(url + "/openid/v1/jwks")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var keys jose.JSONWebKeySet
	if err := json.NewDecoder(resp.Body).Decode(&keys); err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, key := range keys.Keys {
		ids[key.KeyID] = true
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

// publishes waits until all replicas of a server publish exactly these keys.
func (s *server) publishes(t *testing.T, ids ...string) {
	t.Helper()
	slices.Sort(ids)
	for _, url := range s.replicas() {
		eventually(t, func(context.Context) error {
			have, err := s.keyIDs(t, url)
			if err == nil && !slices.Equal(have, ids) {
				err = fmt.Errorf("%s %s publishes the keys %q, want %q", s.cluster.Config.Topology, url, have, ids)
			}
			return err
		})
	}
}

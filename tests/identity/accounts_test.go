package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"

	"triune.dev/tests/tokens"
)

// accountIssuer is the --service-account-issuer that package cluster sets.
const accountIssuer = "https://kubernetes.default.svc.cluster.local"

// account creates a namespace with a ServiceAccount "worker" on a server.
func account(t *testing.T, s *server, namespace string) *corev1.ServiceAccount {
	t.Helper()
	ctx := t.Context()
	if _, err := s.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := s.admin.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// request requests a token of the worker.
func request(t *testing.T, s *server, namespace string, spec authenticationv1.TokenRequestSpec) string {
	t.Helper()
	made, err := s.admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "worker", &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// expect fails unless the server soon takes a token for the user, in all tiers, or refuses
// it with 401 if user is "". What has just been deleted is remembered for ten seconds.
func (s *server) expect(t *testing.T, token, user string) (u authenticationv1.UserInfo) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		a, err := s.identify(ctx, credential{token: token})
		switch {
		case err != nil:
			return err
		case user == "" && a.Code != http.StatusUnauthorized, user != "" && a.User.Username != user:
			return fmt.Errorf("%s: %+v, want the user %q", s.cluster.Config.Topology, a, user)
		}
		u = a.User
		return nil
	})
	return u
}

// TestBoundTokens checks that a token of a ServiceAccount is valid as long as the object
// that it is bound to exists, and for the audiences that it was issued for.
func TestBoundTokens(t *testing.T) {
	t.Parallel() // waits for deletions to take effect
	const namespace, worker = "bound", "system:serviceaccount:bound:worker"
	for _, s := range servers() {
		t.Run(string(s.cluster.Config.Topology), func(t *testing.T) {
			t.Parallel()
			ctx, client := t.Context(), s.admin.CoreV1()
			first := account(t, s, namespace)
			free := request(t, s, namespace, authenticationv1.TokenRequestSpec{})
			elsewhere := request(t, s, namespace, authenticationv1.TokenRequestSpec{Audiences: []string{"elsewhere"}})
			pod, err := client.Pods(namespace).Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "pod"},
				Spec:       corev1.PodSpec{ServiceAccountName: "worker", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			secret, err := client.Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			bound := map[string]string{}
			for kind, meta := range map[string]metav1.ObjectMeta{"Pod": pod.ObjectMeta, "Secret": secret.ObjectMeta} {
				bound[kind] = request(t, s, namespace, authenticationv1.TokenRequestSpec{
					BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: meta.Name, UID: meta.UID},
				})
			}
			s.expect(t, free, worker)
			s.expect(t, elsewhere, "")
			u := s.expect(t, bound["Pod"], worker)
			if u.UID != string(first.UID) || u.Extra["authentication.kubernetes.io/pod-name"][0] != "pod" || len(u.Groups) != 3 {
				t.Errorf("of a pod: %+v", u)
			}
			s.expect(t, bound["Secret"], worker)
			for _, audiences := range [][]string{{"elsewhere"}, {"elsewhere", "nowhere"}, {"nowhere"}, nil} {
				review, err := s.admin.AuthenticationV1().TokenReviews().Create(ctx,
					&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: elsewhere, Audiences: audiences}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				want := len(audiences) > 0 && audiences[0] == "elsewhere"
				if review.Status.Authenticated != want || want && (len(review.Status.Audiences) != 1 || review.Status.Audiences[0] != "elsewhere") {
					t.Errorf("reviewed for %q: %+v", audiences, review.Status)
				}
			}
			now := int64(0)
			if err := client.Pods(namespace).Delete(ctx, "pod", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				t.Fatal(err)
			}
			if err := client.Secrets(namespace).Delete(ctx, "secret", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			s.expect(t, bound["Pod"], "")
			s.expect(t, bound["Secret"], "")
			s.expect(t, free, worker)
			// A new account with the same name is a different account.
			if err := client.ServiceAccounts(namespace).Delete(ctx, "worker", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			s.expect(t, free, "")
			s.expect(t, request(t, s, namespace, authenticationv1.TokenRequestSpec{}), worker)
		})
	}
}

// TestForgedAccounts checks that a token signed with the right key but with false claims is
// 401, and that a token of a Secret is valid as long as the Secret contains it.
func TestForgedAccounts(t *testing.T) {
	t.Parallel()
	const namespace, worker = "forged", "system:serviceaccount:forged:worker"
	key, err := keyutil.PrivateKeyFromFile(site.pki.ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	other, err := keyutil.PrivateKeyFromFile(site.pki.Admin.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	sign := func(key any, claims map[string]any) string {
		token, err := tokens.Sign(key, "", claims)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	for _, s := range servers() {
		t.Run(string(s.cluster.Config.Topology), func(t *testing.T) {
			t.Parallel()
			made := account(t, s, namespace)
			bound := func(changes map[string]any, private map[string]any) map[string]any {
				about := map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": "worker", "uid": made.UID}}
				for k, v := range private {
					about[k] = v
				}
				claims := map[string]any{
					"iss": accountIssuer, "aud": []string{accountIssuer}, "sub": worker, "kubernetes.io": about,
					"iat": at(-time.Minute), "nbf": at(-time.Minute), "exp": at(time.Hour),
				}
				for k, v := range changes {
					claims[k] = v
				}
				return claims
			}
			legacy := map[string]any{
				"iss": "kubernetes/serviceaccount", "sub": worker, "kubernetes.io/serviceaccount/namespace": namespace,
				"kubernetes.io/serviceaccount/service-account.name": "worker", "kubernetes.io/serviceaccount/service-account.uid": made.UID,
				"kubernetes.io/serviceaccount/secret.name": "token",
			}
			s.expect(t, sign(key, bound(nil, nil)), worker)
			for name, token := range map[string]string{
				"another key":       sign(other, bound(nil, nil)),
				"expired":           sign(key, bound(map[string]any{"exp": at(-time.Minute)}, nil)),
				"not valid yet":     sign(key, bound(map[string]any{"nbf": at(time.Hour)}, nil)),
				"another issuer":    sign(key, bound(map[string]any{"iss": "https://issuer.example"}, nil)),
				"another audience":  sign(key, bound(map[string]any{"aud": []string{"elsewhere"}}, nil)),
				"another namespace": sign(key, bound(nil, map[string]any{"namespace": "kube-system"})),
				"another uid":       sign(key, bound(nil, map[string]any{"serviceaccount": map[string]any{"name": "worker", "uid": "no-such"}})),
				"no such account":   sign(key, bound(map[string]any{"sub": "system:serviceaccount:forged:root"}, map[string]any{"serviceaccount": map[string]any{"name": "root", "uid": made.UID}})),
				"no such pod":       sign(key, bound(nil, map[string]any{"pod": map[string]any{"name": "pod", "uid": "no-such"}})),
				"no such node":      sign(key, bound(nil, map[string]any{"node": map[string]any{"name": "node", "uid": "no-such"}})),
				"no such secret":    sign(key, legacy),
				"no private claims": sign(key, map[string]any{"iss": accountIssuer, "aud": accountIssuer, "sub": worker, "exp": at(time.Hour)}),
				"nothing":           sign(key, map[string]any{}),
			} {
				if a, err := s.identify(t.Context(), credential{token: token}); err != nil || a.Code != http.StatusUnauthorized {
					t.Errorf("%s: %+v, %v, want 401", name, a, err)
				}
			}
			legacy["iat"] = at(0) // differs from the token that was refused a moment ago
			token := sign(key, legacy)
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "worker", corev1.ServiceAccountUIDKey: string(made.UID)}},
				Type:       corev1.SecretTypeServiceAccountToken, Data: map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)},
			}
			if _, err := s.admin.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			s.expect(t, token, worker)
			if err := s.admin.CoreV1().Secrets(namespace).Delete(t.Context(), "token", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			s.expect(t, token, "")
		})
	}
}

// TestIssuerDocuments verifies a token with nothing but the documents that the server
// publishes (OpenID Connect Discovery 1.0), as a relying party does.
func TestIssuerDocuments(t *testing.T) {
	for _, s := range servers() {
		account(t, s, "published")
		token, err := jwt.ParseSigned(request(t, s, "published", authenticationv1.TokenRequestSpec{Audiences: []string{"a", "b"}}))
		if err != nil {
			t.Fatal(err)
		}
		document := func(path string, into any) {
			t.Helper()
			body, err := s.admin.RESTClient().Get().AbsPath(path).DoRaw(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(body, into); err != nil {
				t.Fatal(err)
			}
		}
		var configuration struct {
			Issuer  string
			JWKSURI string `json:"jwks_uri"`
		}
		document("/.well-known/openid-configuration", &configuration)
		if configuration.Issuer != accountIssuer {
			t.Errorf("issuer %q", configuration.Issuer)
		}
		var keys jose.JSONWebKeySet
		document("/openid/v1/jwks", &keys)
		var claims jwt.Claims
		if err := token.Claims(&keys, &claims); err != nil {
			t.Errorf("%s: %v", s.cluster.Config.Topology, err)
		}
		if err := claims.Validate(jwt.Expected{Issuer: accountIssuer, Audience: jwt.Audience{"b"}, Time: time.Now(), Subject: "system:serviceaccount:published:worker"}); err != nil {
			t.Errorf("%s: %v", s.cluster.Config.Topology, err)
		}
	}
}

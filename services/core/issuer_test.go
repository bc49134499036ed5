package core

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func formatRevision(revision int64) string { return strconv.FormatInt(revision, 10) }

// testIssuer reads the documents of KEP-1393 as a relying party, and verifies a token with
// them.
func (c *cluster) testIssuer(t *testing.T) {
	code, header, body := c.get(t, "/.well-known/openid-configuration")
	if code != http.StatusOK || header.Get("Content-Type") != "application/json" || !strings.HasPrefix(header.Get("Cache-Control"), "public, max-age=") {
		t.Fatalf("%d %v %s", code, header, body)
	}
	var issuer struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal([]byte(body), &issuer); err != nil {
		t.Fatal(err)
	}
	if issuer.Issuer != "https://issuer.example.com" || !strings.HasSuffix(issuer.Keys, "/openid/v1/jwks") {
		t.Errorf("got %+v", issuer)
	}
	code, header, body = c.get(t, "/openid/v1/jwks")
	var keys struct {
		Keys []struct {
			ID string `json:"kid"`
		} `json:"keys"`
	}
	if err := json.Unmarshal([]byte(body), &keys); err != nil || code != http.StatusOK || header.Get("Content-Type") != "application/jwk-set+json" || len(keys.Keys) != 1 {
		t.Fatalf("%d %v %s: %v", code, header, body, err)
	}
	for _, path := range []string{"/.well-known/openid-configuration", "/openid/v1/jwks"} {
		res, err := c.http.Post(c.url+path, "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, res.StatusCode)
		}
	}

	// There is no kube-controller-manager to create it.
	account, err := c.client.CoreV1().ServiceAccounts("default").Create(t.Context(), serviceAccount("worker"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := c.client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := *c.config
	config.CertFile, config.KeyFile = "", ""
	config.BearerToken = issued.Status.Token
	worker, err := kubernetes.NewForConfig(&config)
	if err != nil {
		t.Fatal(err)
	}
	who, err := worker.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := who.Status.UserInfo.Username; got != "system:serviceaccount:default:worker" {
		t.Errorf("the token is %s's", got)
	}
}

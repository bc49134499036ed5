package tokens

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// Sign returns a JSON Web Token of the claims. key is an RSA or an ECDSA P-256 key; id is
// its key ID and may be empty.
func Sign(key any, id string, claims map[string]any) (string, error) {
	algorithm := jose.RS256
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		algorithm = jose.ES256
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return jwt.Signed(signer).Claims(claims).CompactSerialize()
}

// Issuer is an OpenID Connect provider that serves its documents and its keys. Its methods
// may be called concurrently.
type Issuer struct {
	*httptest.Server

	mu       sync.Mutex
	key      *rsa.PrivateKey
	rotation int
}

// NewIssuer starts an issuer with one key.
func NewIssuer() (*Issuer, error) {
	i := &Issuer{}
	if err := i.Rotate(); err != nil {
		return nil, err
	}
	i.Server = httptest.NewTLSServer(i)
	return i, nil
}

// Rotate replaces the key. The old one is no longer served.
func (i *Issuer) Rotate() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key = key
	i.rotation++
	return nil
}

// CA returns the CA certificate of the issuer's server, in PEM.
func (i *Issuer) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
}

// Token returns a token of the claims. By default it is valid for ten minutes from now, and
// names this issuer.
func (i *Issuer) Token(claims map[string]any) (string, error) {
	now := time.Now()
	all := map[string]any{"iss": i.URL, "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix()}
	maps.Copy(all, claims)
	i.mu.Lock()
	key, id := i.key, strconv.Itoa(i.rotation)
	i.mu.Unlock()
	return Sign(key, id, all)
}

// ServeHTTP implements [http.Handler]: the two documents of OpenID Connect Discovery 1.0
// that are needed to verify tokens.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var document any
	switch req.URL.Path {
	case "/.well-known/openid-configuration":
		document = map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/auth", "token_endpoint": i.URL + "/token",
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256"},
		}
	case "/keys":
		i.mu.Lock()
		key, id := i.key.Public(), strconv.Itoa(i.rotation)
		i.mu.Unlock()
		document = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key, KeyID: id, Algorithm: "RS256", Use: "sig"}}}
	default:
		http.NotFound(w, req)
		return
	}
	_ = json.NewEncoder(w).Encode(document) // the client may have gone
}

package tokens

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	externaljwtv1 "k8s.io/externaljwt/apis/v1"
)

// MaxLife is the longest life of a token that a Signer reports.
const MaxLife = 2 * time.Hour

// Signer signs tokens of ServiceAccounts on a Unix socket, for API servers without a key.
// Its methods may be called concurrently, except for Stop, Start and Close.
type Signer struct {
	externaljwtv1.UnimplementedExternalJWTSignerServer
	// Socket is the value of --service-account-signing-endpoint.
	Socket string

	server *grpc.Server // nil while it is stopped
	served chan error

	mu sync.Mutex
	// keys are the verifying keys; the last one signs.
	keys    []signingKey
	changed time.Time
	signed  int
}

type signingKey struct {
	id      string
	private *ecdsa.PrivateKey
	hidden  bool // not published
}

// NewSigner starts a signer with one key.
func NewSigner() (*Signer, error) {
	// The path of a socket has to be short.
	dir, err := os.MkdirTemp("", "signer-")
	if err != nil {
		return nil, fmt.Errorf("start signer: %w", err)
	}
	s := &Signer{Socket: filepath.Join(dir, "jwt.sock")}
	if _, err = s.Rotate(); err == nil {
		err = s.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// Start starts a stopped signer with the keys it had.
func (s *Signer) Start() error {
	listener, err := net.Listen("unix", s.Socket)
	if err != nil {
		return fmt.Errorf("start signer: %w", err)
	}
	s.server, s.served = grpc.NewServer(), make(chan error, 1)
	externaljwtv1.RegisterExternalJWTSignerServer(s.server, s)
	go func() { s.served <- s.server.Serve(listener) }()
	return nil
}

// Stop stops the signer.
func (s *Signer) Stop() error {
	if s.server == nil {
		return nil
	}
	s.server.Stop()
	s.server = nil
	return <-s.served
}

// Close stops the signer and removes its directory.
func (s *Signer) Close() error { return errors.Join(s.Stop(), os.RemoveAll(filepath.Dir(s.Socket))) }

// Rotate adds a new key, which signs from then on, and returns its ID. The others still
// verify.
func (s *Signer) Rotate() (id string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", fmt.Errorf("rotate the key: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, s.changed = rand.Text(), time.Now()
	s.keys = append(s.keys, signingKey{id: id, private: private})
	return id, nil
}

// Forget removes a key, so that its tokens are no longer valid.
func (s *Signer) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = slices.DeleteFunc(s.keys, func(k signingKey) bool { return k.id == id })
	s.changed = time.Now()
}

// Hide excludes a key from the published ones, or includes it again.
func (s *Signer) Hide(id string, hidden bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.keys {
		if s.keys[i].id == id {
			s.keys[i].hidden = hidden
		}
	}
	s.changed = time.Now()
}

// Signed returns the number of tokens it has signed.
func (s *Signer) Signed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signed
}

// Sign implements [externaljwtv1.ExternalJWTSignerServer], with ES256.
func (s *Signer) Sign(_ context.Context, req *externaljwtv1.SignJWTRequest) (*externaljwtv1.SignJWTResponse, error) {
	s.mu.Lock()
	key := s.keys[len(s.keys)-1]
	s.signed++
	s.mu.Unlock()
	content, err := json.Marshal(map[string]string{"alg": "ES256", "kid": key.id, "typ": "JWT"})
	if err != nil {
		return nil, err
	}
	header := base64.RawURLEncoding.EncodeToString(content)
	sum := sha256.Sum256([]byte(header + "." + req.Claims))
	r, t, err := ecdsa.Sign(rand.Reader, key.private, sum[:])
	if err != nil {
		return nil, err
	}
	// RFC 7518, section 3.4.
	signature := append(r.FillBytes(make([]byte, 32)), t.FillBytes(make([]byte, 32))...)
	return &externaljwtv1.SignJWTResponse{Header: header, Signature: base64.RawURLEncoding.EncodeToString(signature)}, nil
}

// FetchKeys implements [externaljwtv1.ExternalJWTSignerServer]. The keys are valid for a
// second.
func (s *Signer) FetchKeys(context.Context, *externaljwtv1.FetchKeysRequest) (*externaljwtv1.FetchKeysResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &externaljwtv1.FetchKeysResponse{DataTimestamp: timestamppb.New(s.changed), RefreshHintSeconds: 1}
	for _, key := range s.keys {
		public, err := x509.MarshalPKIXPublicKey(key.private.Public())
		if err != nil {
			return nil, err
		}
		answer.Keys = append(answer.Keys, &externaljwtv1.Key{KeyId: key.id, Key: public, ExcludeFromOidcDiscovery: key.hidden})
	}
	return answer, nil
}

// Metadata implements [externaljwtv1.ExternalJWTSignerServer].
func (s *Signer) Metadata(context.Context, *externaljwtv1.MetadataRequest) (*externaljwtv1.MetadataResponse, error) {
	return &externaljwtv1.MetadataResponse{MaxTokenExpirationSeconds: int64(MaxLife.Seconds())}, nil
}

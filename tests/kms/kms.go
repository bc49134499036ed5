// Package kms is a key management service for tests: a KMS v2 plugin on a Unix socket with
// its own keys, which can rotate them, hang, stop and start again.
package kms

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kmsv2 "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
)

// Plugin encrypts with AES-GCM and the newest of its keys, and decrypts with all keys that
// were not forgotten. Its methods may be called concurrently, except for Stop, Start and
// Close.
type Plugin struct {
	// Endpoint is its endpoint in an EncryptionConfiguration: unix:///...
	Endpoint string

	dir    string
	server *grpc.Server // nil while it is stopped
	served chan error

	mu      sync.Mutex
	keys    map[string]cipher.AEAD
	current string
	// resumed is closed by Resume; nil if the plugin does not hang.
	resumed   chan struct{}
	decrypted int
}

// New starts a plugin with one key.
func New() (*Plugin, error) {
	// The path of a socket has to be short.
	dir, err := os.MkdirTemp("", "kms-")
	if err != nil {
		return nil, fmt.Errorf("start KMS plugin: %w", err)
	}
	p := &Plugin{Endpoint: "unix://" + filepath.Join(dir, "kms.sock"), dir: dir, keys: map[string]cipher.AEAD{}}
	if _, err = p.Rotate(); err == nil {
		err = p.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// Start starts a stopped plugin with the keys it had.
func (p *Plugin) Start() error {
	listener, err := net.Listen("unix", filepath.Join(p.dir, "kms.sock"))
	if err != nil {
		return fmt.Errorf("start KMS plugin: %w", err)
	}
	p.server, p.served = grpc.NewServer(grpc.UnaryInterceptor(p.wait)), make(chan error, 1)
	kmsv2.RegisterKeyManagementServiceServer(p.server, service.NewGRPCService(p.Endpoint, time.Minute, p))
	go func() { p.served <- p.server.Serve(listener) }()
	return nil
}

// Stop stops the plugin: connections and calls break, and the socket is removed.
func (p *Plugin) Stop() error {
	if p.server == nil {
		return nil
	}
	p.server.Stop()
	p.server = nil
	return <-p.served
}

// Close stops the plugin and removes its directory.
func (p *Plugin) Close() error { return errors.Join(p.Stop(), os.RemoveAll(p.dir)) }

// Hang leaves calls unanswered until Resume.
func (p *Plugin) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed == nil {
		p.resumed = make(chan struct{})
	}
}

// Resume ends Hang. Pending calls are answered.
func (p *Plugin) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed != nil {
		close(p.resumed)
		p.resumed = nil
	}
}

// wait blocks a call while the plugin hangs.
func (p *Plugin) wait(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	p.mu.Lock()
	resumed := p.resumed
	p.mu.Unlock()
	if resumed != nil {
		select {
		case <-resumed:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return handle(ctx, req)
}

// Rotate adds a new key, which encrypts from then on, and returns its ID.
func (p *Plugin) Rotate() (id string, err error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // which never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		return "", fmt.Errorf("rotate the key: %w", err)
	}
	sealer, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return "", fmt.Errorf("rotate the key: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = fmt.Sprintf("key-%d-%s", len(p.keys)+1, rand.Text())
	p.keys[p.current] = sealer
	return p.current, nil
}

// KeyID returns the ID of the encrypting key.
func (p *Plugin) KeyID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// Forget destroys a key, so that what it encrypted cannot be decrypted.
func (p *Plugin) Forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[id] = nil
}

// Decrypted returns the number of decrypt requests.
func (p *Plugin) Decrypted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decrypted
}

// Status implements [service.Service].
func (p *Plugin) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: p.KeyID()}, nil
}

// Encrypt implements [service.Service].
func (p *Plugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &service.EncryptResponse{Ciphertext: p.keys[p.current].Seal(nil, nil, data, nil), KeyID: p.current}, nil
}

// Decrypt implements [service.Service].
func (p *Plugin) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decrypted++
	sealer := p.keys[req.KeyID]
	if sealer == nil {
		return nil, status.Errorf(codes.NotFound, "there is no key %q", req.KeyID)
	}
	data, err := sealer.Open(nil, nil, req.Ciphertext, nil)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "decrypt with key %q: %v", req.KeyID, err)
	}
	return data, nil
}

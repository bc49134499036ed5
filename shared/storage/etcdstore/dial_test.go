package etcdstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"triune.dev/shared/testing/etcdtest"
)

// mute returns the address of a server that accepts connections and never answers.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return "http://" + l.Addr().String()
}

// closed returns an address on which nothing listens.
func closed(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestDial(t *testing.T) {
	server := etcdtest.Start(t)
	t.Run("one of several servers is up", func(t *testing.T) {
		client, err := Dial(t.Context(), storagebackend.TransportConfig{ServerList: []string{closed(t), server.URL()}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Get(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a server comes up later", func(t *testing.T) {
		later := etcdtest.Start(t)
		later.Stop()
		dialed := make(chan error, 1)
		go func() {
			client, err := Dial(t.Context(), storagebackend.TransportConfig{ServerList: []string{later.URL()}})
			if err == nil {
				_ = client.Close()
			}
			dialed <- err
		}()
		later.Restart(t)
		if err := <-dialed; err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	rubbish := filepath.Join(dir, "rubbish.pem")
	if err := os.WriteFile(rubbish, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := keyPair(t, dir)
	refused, silent := closed(t), mute(t)
	for _, tc := range []struct {
		name   string
		config storagebackend.TransportConfig
		says   []string
	}{
		{"no servers", storagebackend.TransportConfig{}, []string{"no servers"}},
		{"nobody listens", storagebackend.TransportConfig{ServerList: []string{refused}}, []string{refused, "connection refused"}},
		{"nobody answers", storagebackend.TransportConfig{ServerList: []string{silent}}, []string{silent}},
		{"no such name", storagebackend.TransportConfig{ServerList: []string{"http://etcd.invalid:2379"}}, []string{"etcd.invalid"}},
		{"CA file missing", storagebackend.TransportConfig{ServerList: []string{refused}, TrustedCAFile: filepath.Join(dir, "none")}, []string{"CA file", "none"}},
		{"CA file unusable", storagebackend.TransportConfig{ServerList: []string{refused}, TrustedCAFile: rubbish}, []string{rubbish, "holds no certificate"}},
		{"certificate without key", storagebackend.TransportConfig{ServerList: []string{refused}, CertFile: cert}, []string{cert}},
		{"key unusable", storagebackend.TransportConfig{ServerList: []string{refused}, CertFile: cert, KeyFile: rubbish}, []string{"client certificate", rubbish}},
		{"TLS to a server without", storagebackend.TransportConfig{ServerList: []string{strings.Replace(server.URL(), "http", "https", 1)}, CertFile: cert, KeyFile: key, TrustedCAFile: cert}, []string{"handshake"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			start := time.Now()
			client, err := Dial(ctx, tc.config)
			if err == nil {
				_ = client.Close()
				t.Fatal("no error")
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			t.Log(err)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			for _, part := range tc.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

// keyPair writes a self-signed certificate and its key.
func keyPair(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestUnreachable checks that operations end with their context, whether etcd refuses or
// hangs.
func TestUnreachable(t *testing.T) {
	for name, url := range map[string]string{"nobody listens": closed(t), "nobody answers": mute(t)} {
		t.Run(name, func(t *testing.T) {
			etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: clientLogger()})
			if err != nil {
				t.Fatal(err)
			}
			defer etcd.Close()
			s := newStore(t, etcd, withCache(t))
			for name, operation := range map[string]func(context.Context) error{
				"get": func(ctx context.Context) error {
					return s.Get(ctx, podKey("a"), storage.GetOptions{}, &example.Pod{})
				},
				"list": func(ctx context.Context) error {
					return s.GetList(ctx, "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{})
				},
				"create": func(ctx context.Context) error {
					return s.Create(ctx, podKey("a"), podNamed("a"), nil, 0)
				},
				"create with a time to live": func(ctx context.Context) error {
					return s.Create(ctx, podKey("a"), podNamed("a"), nil, 60)
				},
				"update": func(ctx context.Context) error {
					return s.GuaranteedUpdate(ctx, podKey("a"), &example.Pod{}, false, nil, func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
						return obj, nil, nil
					}, nil)
				},
				"delete": func(ctx context.Context) error {
					return s.Delete(ctx, podKey("a"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
				},
				"stats": func(ctx context.Context) error {
					_, err := s.Stats(ctx)
					return err
				},
				"current version": func(ctx context.Context) error {
					_, err := s.GetCurrentResourceVersion(ctx)
					return err
				},
				"health": HealthCheck(etcd, HealthOptions{Timeout: 100 * time.Millisecond}),
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					start := time.Now()
					if err := operation(ctx); err == nil {
						t.Error("no error")
					}
					if took := time.Since(start); took > 5*time.Second {
						t.Errorf("took %s", took)
					}
				})
			}
			for _, version := range []string{"", "7"} {
				t.Run("watch from "+version, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					w, err := s.Watch(ctx, "/pods", storage.ListOptions{ResourceVersion: version, Recursive: true, Predicate: storage.Everything})
					if err != nil {
						t.Fatal(err)
					}
					ended(t, w)
				})
			}
		})
	}
}

// TestHealthCheck checks that the result follows etcd and is shared by concurrent callers.
func TestHealthCheck(t *testing.T) {
	server := etcdtest.Start(t)
	check := HealthCheck(server.Dial(t), HealthOptions{Prefix: "/registry", Timeout: 200 * time.Millisecond})
	if err := check(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if err := check(t.Context()); err != nil {
		t.Errorf("asked again within half the timeout: %v", err)
	}
	eventually(t, "etcd is found dead", func() bool { return check(t.Context()) != nil })
	server.Restart(t)
	eventually(t, "etcd is found alive", func() bool { return check(t.Context()) == nil })
	// A caller that gives up does not spoil the result for the others.
	h := &health{timeout: time.Minute, pending: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

package nexttier

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/testing/polltest"
	"triune.dev/shared/transport/distrust"
	"triune.dev/shared/transport/h2"
)

var (
	testPKI *pki.PKI
	// otherPKI belongs to another installation, which no tier of this one trusts.
	otherPKI *pki.PKI
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "nexttier")
	if err != nil {
		log.Fatal(err)
	}
	for name, p := range map[string]**pki.PKI{"own": &testPKI, "other": &otherPKI} {
		if *p, err = pki.Ensure(dir+"/"+name, pki.Options{ExtraNames: []string{"replicas.example.test"}}); err != nil {
			log.Fatal(err)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// backend is a replica of the next tier: an HTTPS server with kube-apiserver's front-proxy
// authenticator.
type backend struct {
	t       testing.TB
	handler http.Handler
	address string
	// old selects a release without the marks of package distrust.
	old bool
	// ours selects package h2 instead of net/http.
	ours bool
	// trusts holds the trusted front-proxy CA.
	trusts *pki.PKI
	// probes serves /readyz.
	probes http.HandlerFunc

	// accepted, if set, is called for each connection.
	accepted func()
	// authentications counts all requests except probes.
	authentications atomic.Int64

	mu      sync.Mutex
	server  *http.Server
	serving chan struct{}
	tls     *tls.Config
}

func startBackend(t testing.TB, handler http.HandlerFunc, change ...func(*backend)) *backend {
	t.Helper()
	b := &backend{t: t, handler: handler, address: "127.0.0.1:0", trusts: testPKI, probes: func(http.ResponseWriter, *http.Request) {}}
	cert, err := testPKI.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	b.tls = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}}
	for _, f := range change {
		f(b)
	}
	b.start()
	t.Cleanup(b.kill)
	return b
}

// start listens; after kill it listens on the same address again.
func (b *backend) start() {
	b.t.Helper()
	listener, err := net.Listen("tcp", b.address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.address = listener.Addr().String()
	roots, err := pki.LoadPool(b.trusts.FrontProxyCA.CertFile)
	if err != nil {
		b.t.Fatal(err)
	}
	fixed := func(values ...string) headerrequest.StaticStringSlice { return values }
	authenticate := headerrequest.NewDynamicVerifyOptionsSecure(
		x509request.StaticVerifierFn(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}),
		fixed(pki.FrontProxyClientName), fixed("X-Remote-User"), fixed("X-Remote-Uid"), fixed("X-Remote-Group"), fixed("X-Remote-Extra-"))
	server := &http.Server{
		Handler:   b.authenticated(authenticate),
		TLSConfig: b.tls.Clone(),
		ErrorLog:  log.New(io.Discard, "", 0),
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: 100},
	}
	if b.ours {
		server.HTTP2 = nil
		h2.Configure(server, h2.Options{MaxConcurrentStreams: 100, MaxUploadPerStream: 256 << 10, IdleTimeout: 90 * time.Second})
		listener = h2.Listener{Listener: listener}
	}
	if b.accepted != nil {
		server.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				b.accepted()
			}
		}
	}
	serving := make(chan struct{})
	b.mu.Lock()
	b.server, b.serving = server, serving
	b.mu.Unlock()
	go func() {
		defer close(serving)
		serve := func() error { return server.ServeTLS(listener, "", "") }
		if b.ours {
			serve = func() error { return server.Serve(tls.NewListener(listener, server.TLSConfig)) }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			b.t.Errorf("serve: %v", err)
		}
	}()
}

func (b *backend) authenticated(a authenticator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			b.authentications.Add(1)
		}
		answer, ok, err := a.AuthenticateRequest(r)
		if err != nil || !ok {
			// Like package distrust for an untrusted front proxy.
			if challenge, marks := r.Header[distrust.ChallengeHeader]; marks && !b.old {
				w.Header()[distrust.EchoHeader] = challenge
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonUnauthorized, Code: 401, Message: "Unauthorized"})
			return
		}
		distrust.RemoveChallenge(r.Header)
		r = r.WithContext(apirequest.WithUser(r.Context(), answer.User))
		if r.URL.Path == "/readyz" {
			b.probes(w, r)
			return
		}
		b.handler.ServeHTTP(w, r)
	})
}

// kill closes all connections, like the end of the process.
func (b *backend) kill() {
	b.mu.Lock()
	server, serving := b.server, b.serving
	b.mu.Unlock()
	_ = server.Close()
	<-serving
}

// drain shuts the server down gracefully.
func (b *backend) drain() {
	b.t.Helper()
	b.mu.Lock()
	server, serving := b.server, b.serving
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		b.t.Errorf("drain: %v", err)
	}
	<-serving
}

func (b *backend) url() string { return "https://" + b.address }

// testConfig returns a configuration with short timeouts.
func testConfig(targets ...string) Config {
	return Config{
		Tier:          "core",
		Targets:       targets,
		CAFile:        testPKI.ClusterCA.CertFile,
		CertFile:      testPKI.FrontProxyClient.CertFile,
		KeyFile:       testPKI.FrontProxyClient.KeyFile,
		ProbeInterval: 400 * time.Millisecond,
	}
}

func urls(backends ...*backend) []string {
	var urls []string
	for _, b := range backends {
		urls = append(urls, b.url())
	}
	return urls
}

// startProxy runs a proxy until the test ends.
func startProxy(t testing.TB, c Config) *Proxy {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return p
}

var alice = &user.DefaultInfo{
	Name: "alice", UID: "42", Groups: []string{"dev", "system:authenticated"},
	Extra: map[string][]string{"example.org/scopes": {"a", "b"}, "Weird%Key é": {"x"}},
}

// front is the first tier, which sets the user and the request info.
type front struct {
	*httptest.Server
	client *http.Client
}

func startFront(t testing.TB, p http.Handler, with ...func(ctx context.Context) context.Context) *front {
	t.Helper()
	resolver := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := resolver.NewRequestInfo(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx := apirequest.WithRequestInfo(apirequest.WithUser(r.Context(), alice), info)
		for _, f := range with {
			ctx = f(ctx)
		}
		p.ServeHTTP(w, r.WithContext(ctx))
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1000}
	server.StartTLS()
	t.Cleanup(server.Close)
	return &front{server, server.Client()}
}

// answer is a complete response.
type answer struct {
	code   int
	header http.Header
	body   string
	status metav1.Status // if the body is one
}

func (f *front) do(t testing.TB, req *http.Request) answer {
	t.Helper()
	a, err := f.try(req)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (f *front) try(req *http.Request) (answer, error) {
	res, err := f.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{code: res.StatusCode, header: res.Header, body: string(data)}
	if json.Unmarshal(data, &a.status) != nil {
		a.status = metav1.Status{}
	}
	return a, nil
}

func (f *front) request(t testing.TB, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func (f *front) get(t testing.TB, path string) answer {
	t.Helper()
	return f.do(t, f.request(t, http.MethodGet, path, nil))
}

// eventually waits until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, 20*time.Second, what, ok)
}

func conditionOf(p *Proxy, address string) condition {
	for _, r := range *p.replicas.Load() {
		if r.address == address && r.conditionKnown.Load() {
			return condition(r.condition.Load())
		}
	}
	return -1
}

func reply(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

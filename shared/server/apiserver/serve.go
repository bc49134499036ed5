package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"triune.dev/shared/transport/h2"
)

// What clients of kube-apiserver are used to.
const (
	maxHeaderBytes    = 1 << 20
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	// defaultStreams is the number of requests at once on one connection.
	defaultStreams = 100
	// uploadPerStream is what a request may send before its handler reads, in bytes: most
	// objects as a whole.
	uploadPerStream = 256 << 10
	keepAlive       = 3 * time.Minute
)

// newHTTPServer makes a server with an HTTP/2 of ours, or with Go's. In all else it is the
// one of [server.SecureServingInfo.Serve].
func newHTTPServer(info *server.SecureServingInfo, http2 HTTP2Server, handler http.Handler, stop <-chan struct{}) (*http.Server, error) {
	s := &http.Server{
		Addr: info.Listener.Addr().String(), Handler: handler, TLSConfig: tlsConfig(info, stop),
		MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout, ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog: slog.NewLogLogger(complaints{}, slog.LevelError),
	}
	if info.DisableHTTP2 {
		s.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	} else {
		streams := info.HTTP2MaxStreamsPerConnection
		if streams <= 0 {
			streams = defaultStreams
		}
		options := h2.Options{MaxConcurrentStreams: streams, MaxUploadPerStream: uploadPerStream, IdleTimeout: idleTimeout}
		if http2 == GoHTTP2 {
			if err := h2.ConfigureGo(s, options); err != nil {
				return nil, fmt.Errorf("--http2-server=%s, --tls-cipher-suites: %w", http2, err)
			}
			return s, nil
		}
		h2.Configure(s, options)
	}
	return s, nil
}

// serve answers requests until the server is shut down; then it returns nil.
func serve(s *http.Server, listener net.Listener) error {
	klog.Background().Info("serving", "address", s.Addr)
	err := s.Serve(tls.NewListener(h2.Listener{Listener: keptAlive{listener}}, s.TLSConfig))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", s.Addr, err)
}

// shutDown ends a server when stop is closed: requests in flight have timeout to end.
func shutDown(s *http.Server, timeout time.Duration, stop <-chan struct{}) {
	<-stop
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		klog.Background().Error(err, "shut down the server", "address", s.Addr)
	}
}

// tlsConfig follows the certificates that the flags name. A client's is asked for and not
// verified: that is for authentication.
func tlsConfig(info *server.SecureServingInfo, stop <-chan struct{}) *tls.Config {
	config := &tls.Config{
		MinVersion:   cmp.Or(info.MinTLSVersion, tls.VersionTLS12),
		CipherSuites: info.CipherSuites, CurvePreferences: info.CurvePreferences,
		NextProtos: []string{"h2", "http/1.1"},
		// Answers are given to TLS as a whole.
		DynamicRecordSizingDisabled: true,
	}
	if info.DisableHTTP2 {
		config.NextProtos = []string{"http/1.1"}
	}
	for name, id := range flag.InsecureTLSCiphers() {
		for _, suite := range info.CipherSuites {
			if suite == id {
				klog.Background().Info("an insecure cipher suite is allowed", "suite", name)
			}
		}
	}
	if info.ClientCA != nil {
		config.ClientAuth = tls.RequestClientCert
	}
	if info.ClientCA == nil && info.Cert == nil && len(info.SNICerts) == 0 {
		return config
	}
	dynamic := dynamiccertificates.NewDynamicServingCertificateController(config, info.ClientCA, info.Cert, info.SNICerts, nil)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		<-stop
	}()
	follow := func(source dynamiccertificates.Notifier) {
		source.AddListener(dynamic)
		if files, ok := source.(dynamiccertificates.ControllerRunner); ok {
			if err := files.RunOnce(ctx); err != nil {
				klog.Background().Error(err, "read certificates")
			}
			go files.Run(ctx, 1)
		}
	}
	if info.ClientCA != nil {
		follow(info.ClientCA)
	}
	if info.Cert != nil {
		follow(info.Cert)
	}
	for _, cert := range info.SNICerts {
		follow(cert)
	}
	if err := dynamic.RunOnce(); err != nil {
		klog.Background().Error(err, "read certificates")
	}
	go dynamic.Run(1, stop)
	config.GetConfigForClient = dynamic.GetConfigForClient
	return config
}

// keptAlive has the kernel ask clients that are silent whether they are there.
type keptAlive struct{ net.Listener }

// Accept implements [net.Listener].
func (l keptAlive) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAlive(true) // a connection without is one still
		_ = tcp.SetKeepAlivePeriod(keepAlive)
	}
	return conn, nil
}

// complaints are what net/http logs. Handshakes that fail are counted, and not worth a line
// each.
type complaints struct{}

// Enabled implements [slog.Handler].
func (complaints) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (complaints) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "TLS handshake error") {
		metrics.TLSHandshakeErrors.Inc()
		klog.V(5).Info(r.Message)
		return nil
	}
	klog.Background().Info("net/http complains", "about", r.Message)
	return nil
}

// WithAttrs implements [slog.Handler].
func (c complaints) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements [slog.Handler].
func (c complaints) WithGroup(string) slog.Handler { return c }

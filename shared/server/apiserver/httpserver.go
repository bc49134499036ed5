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

// The limits of kube-apiserver.
const (
	maxHeaderBytes    = 1 << 20
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	// defaultStreams is the number of concurrent requests on one connection.
	defaultStreams = 100
	// uploadPerStream is the number of bytes that a request may send before its handler
	// reads. Most objects are smaller.
	uploadPerStream = 256 << 10
	keepAlive       = 3 * time.Minute
)

// newHTTPServer returns a server like that of [server.SecureServingInfo.Serve], with our
// HTTP/2 or Go's.
func newHTTPServer(info *server.SecureServingInfo, http2 HTTP2Server, handler http.Handler, stop <-chan struct{}) (*http.Server, error) {
	s := &http.Server{
		Addr: info.Listener.Addr().String(), Handler: handler, TLSConfig: tlsConfig(info, stop),
		MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout, ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog: slog.NewLogLogger(errorLog{}, slog.LevelError),
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

// serve serves until the server is shut down; then it returns nil.
func serve(s *http.Server, listener net.Listener) error {
	klog.Background().Info("serving", "address", s.Addr)
	err := s.Serve(tls.NewListener(h2.Listener{Listener: keepAliveListener{listener}}, s.TLSConfig))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", s.Addr, err)
}

// shutdownAfter waits for stop and shuts the server down. Requests in flight have until
// timeout to finish.
func shutdownAfter(stop <-chan struct{}, s *http.Server, timeout time.Duration) {
	<-stop
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		klog.Background().Error(err, "shut down the server", "address", s.Addr)
	}
}

// tlsConfig returns a configuration that reloads certificates when their files change. It
// requests client certificates without verifying them; authentication does that.
func tlsConfig(info *server.SecureServingInfo, stop <-chan struct{}) *tls.Config {
	config := &tls.Config{
		MinVersion:   cmp.Or(info.MinTLSVersion, tls.VersionTLS12),
		CipherSuites: info.CipherSuites, CurvePreferences: info.CurvePreferences,
		NextProtos: []string{"h2", "http/1.1"},
		// Answers are written to TLS as a whole.
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
	watch := func(source dynamiccertificates.Notifier) {
		source.AddListener(dynamic)
		if files, ok := source.(dynamiccertificates.ControllerRunner); ok {
			if err := files.RunOnce(ctx); err != nil {
				klog.Background().Error(err, "read certificates")
			}
			go files.Run(ctx, 1)
		}
	}
	if info.ClientCA != nil {
		watch(info.ClientCA)
	}
	if info.Cert != nil {
		watch(info.Cert)
	}
	for _, cert := range info.SNICerts {
		watch(cert)
	}
	if err := dynamic.RunOnce(); err != nil {
		klog.Background().Error(err, "read certificates")
	}
	go dynamic.Run(1, stop)
	config.GetConfigForClient = dynamic.GetConfigForClient
	return config
}

// keepAliveListener enables TCP keep-alives on accepted connections.
type keepAliveListener struct{ net.Listener }

// Accept implements [net.Listener].
func (l keepAliveListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAlive(true) // best effort
		_ = tcp.SetKeepAlivePeriod(keepAlive)
	}
	return conn, nil
}

// errorLog handles the log lines of net/http. Failed handshakes are counted, and logged only
// at a high verbosity.
type errorLog struct{}

// Enabled implements [slog.Handler].
func (errorLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (errorLog) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "TLS handshake error") {
		metrics.TLSHandshakeErrors.Inc()
		klog.V(5).Info(r.Message)
		return nil
	}
	klog.Background().Info("net/http", "message", r.Message)
	return nil
}

// WithAttrs implements [slog.Handler].
func (e errorLog) WithAttrs([]slog.Attr) slog.Handler { return e }

// WithGroup implements [slog.Handler].
func (e errorLog) WithGroup(string) slog.Handler { return e }

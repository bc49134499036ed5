package conformance

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"triune.dev/shared/h2"
	"triune.dev/shared/pki"
	"triune.dev/tests/tools"
)

// passed is the last line of h2spec. Of its 146 cases the one of larger frames is skipped
// where frames are of the usual size.
var passed = regexp.MustCompile(`146 tests, 145 passed, 1 skipped, 0 failed`)

// TestHTTP2 runs all cases of h2spec for RFC 7540 and RFC 7541, the strict ones too. An API
// server itself cannot be asked: it answers anonymous requests with GOAWAY, and before all
// of them has come.
func TestHTTP2(t *testing.T) {
	binary, err := tools.Path(t.Context(), "h2spec")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := pki.Ensure(filepath.Join(t.TempDir(), "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pair := keys.Serving["aggregator"]
	certificate, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return // the client hears of it by the stream
			}
			_, _ = io.WriteString(w, "ok\n") // a client may be gone
		}),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	// A frame may have 16 KiB, as where SETTINGS say nothing: the suite goes by that.
	h2.Configure(server, h2.Options{MaxConcurrentStreams: 100, MaxUploadPerStream: 16 << 10, IdleTimeout: time.Minute})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(tls.NewListener(h2.Listener{Listener: plain}, server.TLSConfig)) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})

	host, port, err := net.SplitHostPort(plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	report, err := exec.CommandContext(t.Context(), binary,
		"--strict", "--tls", "--insecure", "--timeout=10", "--host="+host, "--port="+port).CombinedOutput()
	if err != nil || !passed.Match(report) {
		failures := report[max(0, bytes.LastIndex(report, []byte("Failures:"))):]
		t.Errorf("h2spec: %v\n%s", err, failures)
	}
}

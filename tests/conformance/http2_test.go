package conformance

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/transport/h2"
	"triune.dev/tests/tools"
)

// summary is the last line of h2spec. Of its 146 cases, the one of larger frames is skipped
// if frames have the default size.
var summary = regexp.MustCompile(`146 tests, (\d+) passed, 1 skipped, (\d+) failed`)

// gosFailures are the cases that Go's server fails, as named by h2spec. docs/http2.md has
// their number.
var gosFailures = []string{
	"1: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE",
	"1: Sends a HEADERS frame that contains the connection-specific header field",
	`2: Sends a HEADERS frame that contains the TE header field with any value other than "trailers"`,
}

// bounds are the options of both servers. A frame may have 16 KiB, the default that the
// suite assumes.
var bounds = h2.Options{MaxConcurrentStreams: 100, MaxUploadPerStream: 16 << 10, IdleTimeout: time.Minute}

// TestHTTP2 runs all cases of h2spec for RFC 7540 and RFC 7541, including the strict ones.
// An API server itself is not suitable: it answers anonymous requests with GOAWAY, even
// before they are complete.
func TestHTTP2(t *testing.T) {
	report := specify(t, func(s *http.Server) error { h2.Configure(s, bounds); return nil })
	if m := summary.FindSubmatch(report); m == nil || string(m[1]) != "145" {
		t.Errorf("h2spec:\n%s", failures(report))
	}
}

// TestHTTP2OfGo is the reference: h2spec's result for kube-apiserver's server
// (--http2-server=go).
func TestHTTP2OfGo(t *testing.T) {
	report := specify(t, func(s *http.Server) error { return h2.ConfigureGo(s, bounds) })
	var failed []string
	for line := range strings.Lines(string(failures(report))) {
		if _, name, ok := strings.Cut(line, "× "); ok {
			failed = append(failed, strings.TrimSpace(name))
		}
	}
	if diff := cmp.Diff(gosFailures, failed); diff != "" {
		t.Errorf("-known +h2spec:\n%s\n%s", diff, failures(report))
	}
}

// failures returns the part of a report with the failures.
func failures(report []byte) []byte {
	return report[max(0, bytes.LastIndex(report, []byte("Failures:"))):]
}

// specify runs h2spec against a server and returns its report.
func specify(t *testing.T, configure func(*http.Server) error) []byte {
	t.Helper()
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
		ErrorLog: log.New(io.Discard, "", 0), // h2spec reports errors
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return // the client gets an error of the stream
			}
			_, _ = io.WriteString(w, "ok\n") // the client may be gone
		}),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	if err := configure(server); err != nil {
		t.Fatal(err)
	}
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
	// Its exit status reports failures, as does the report.
	report, err := exec.CommandContext(t.Context(), binary,
		"--strict", "--tls", "--insecure", "--timeout=10", "--host="+host, "--port="+port).CombinedOutput()
	if !summary.Match(report) {
		t.Fatalf("h2spec: %v\n%s", err, report)
	}
	return report
}

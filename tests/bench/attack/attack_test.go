package attack

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Every attack reaches a server, does what its title says, and leaves nothing behind.
func TestAttacksAreTaken(t *testing.T) {
	for _, a := range All() {
		t.Run(a.Name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			var mu sync.Mutex
			seen := map[string]int{}
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				mu.Lock()
				for kind, is := range map[string]bool{
					"cookies":     strings.Count(req.Header.Get("Cookie"), "a=b") == 20_000,
					"long field":  len(req.Header.Get("X-Long")) > 8000,
					"body":        req.Method == http.MethodPost && req.ContentLength == 1000,
					"document":    req.URL.Path == "/openapi/v2" && req.Header.Get("Authorization") == "Bearer nobody",
					"refused":     req.URL.Path == forbidden && req.ProtoMajor == 1,
					"namespace":   len(req.URL.Path) > 900_000 && req.Header.Get("Authorization") == "",
					"of somebody": len(req.URL.Path) > 900_000 && req.Header.Get("Authorization") == "Bearer nobody",
					"certificate": len(req.TLS.PeerCertificates) == 1,
					"token":       strings.HasPrefix(req.Header.Get("Authorization"), "Bearer ") && len(req.URL.Path) < 100,
				} {
					if is {
						seen[kind]++
					}
				}
				mu.Unlock()
				w.WriteHeader(http.StatusForbidden)
				if req.URL.Path == "/openapi/v2" {
					_, _ = w.Write(make([]byte, 3<<20)) // the attacker may not read it
				}
			}))
			server.EnableHTTP2 = true
			server.Config.ErrorLog = log.New(io.Discard, "", 0) // errors of closed connections
			server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
			server.StartTLS()
			defer server.Close()
			roots := x509.NewCertPool()
			roots.AddCert(server.Certificate())
			running := a.Start(t.Context(), &Site{
				Addr: server.Listener.Addr().String(), TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}, Nobody: "nobody",
			})
			want := map[string][]string{
				"headers": {"cookies", "long field"}, "bodies": {"body"}, "unread": {"document"}, "closes": {"refused"},
				"namespaces": {"namespace", "of somebody", "certificate"}, "tokens": {"token"},
			}[a.Name]
			missing := func() string {
				mu.Lock()
				defer mu.Unlock()
				for _, kind := range want {
					if seen[kind] == 0 {
						return kind
					}
				}
				return ""
			}
			for begin := time.Now(); missing() != "" && time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
			}
			kind, n := missing(), running.Stop()
			if kind != "" || len(want) == 0 {
				t.Errorf("no %q has come: %v", kind, seen)
			}
			if n == 0 || a.perSecond == 0 && n != a.clients {
				t.Errorf("it was made %d times", n)
			}
		})
	}
}

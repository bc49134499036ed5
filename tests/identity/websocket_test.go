package identity

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// TestWebSocketBearer checks that a token may be sent as a subprotocol of a WebSocket,
// because browsers cannot set headers, and that it is not echoed.
func TestWebSocketBearer(t *testing.T) {
	const prefix = "base64url.bearer.authorization.k8s.io."
	good := prefix + encoded([]byte("hook-masters"))
	for _, path := range collections {
		for protocols, want := range map[string]string{
			good + ", base64.binary.k8s.io":                                      "101 base64.binary.k8s.io",
			"base64.binary.k8s.io, " + good:                                      "101 base64.binary.k8s.io",
			prefix + encoded([]byte("hook-as:other")) + ", base64.binary.k8s.io": "403 ",
			prefix + encoded([]byte("no-such-token")) + ", base64.binary.k8s.io": "401 ",
			prefix + "!!, base64.binary.k8s.io":                                  "401 ",
			good + ", " + good + ", base64.binary.k8s.io":                        "401 ",
			good:                   "401 ", // the server must choose a subprotocol, and the token is none
			"base64.binary.k8s.io": "401 ",
		} {
			var answers []string
			for _, s := range servers() {
				answers = append(answers, s.upgrade(t, path+"?watch=true", protocols))
			}
			if diff := gocmp.Diff(answers[0], answers[1]); diff != "" {
				t.Errorf("%s with %q (-kube-apiserver +tested):\n%s", path, protocols, diff)
			}
			if answers[1] != want {
				t.Errorf("%s with %q: %q, want %q", path, protocols, answers[1], want)
			}
		}
	}
}

// upgrade requests a WebSocket and returns the status and the chosen protocol.
func (s *server) upgrade(t *testing.T, path, protocols string) string {
	t.Helper()
	address := strings.TrimPrefix(s.cluster.URL, "https://")
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: s.roots, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.cluster.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": protocols,
		"Origin": s.cluster.URL,
	} {
		req.Header.Set(name, value)
	}
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Sec-WebSocket-Protocol"))
}

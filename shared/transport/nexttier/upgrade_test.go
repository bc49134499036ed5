package nexttier

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// rawUpgrade sends an upgrade request over HTTP/1.1. The body of a 101 response is the connection.
func rawUpgrade(t *testing.T, f *front, path, protocol string) *http.Response {
	t.Helper()
	req := f.request(t, http.MethodPost, path, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	req.Header.Set("X-Stream-Protocol-Version", "v4.channel.k8s.io")
	transport := &http.Transport{TLSClientConfig: f.client.Transport.(*http.Transport).TLSClientConfig.Clone(), DisableKeepAlives: true}
	transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// echo switches protocols and echoes lines in upper case.
func echo(w http.ResponseWriter, r *http.Request) {
	u, _ := apirequest.UserFrom(r.Context())
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	// The greeting and the headers arrive together: the proxy must not lose buffered data.
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-User: %s\r\n\r\nhello\n", r.Header.Get("Upgrade"), u.GetName())
	lines := bufio.NewScanner(buffered)
	for lines.Scan() {
		fmt.Fprintln(conn, strings.ToUpper(lines.Text()))
	}
	fmt.Fprintln(conn, "bye")
}

func TestUpgradeCopiesBothWays(t *testing.T) {
	b := startBackend(t, echo)
	f := startFront(t, startProxy(t, testConfig(b.url())))
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		t.Run(protocol, func(t *testing.T) {
			res := rawUpgrade(t, f, "/api/v1/namespaces/n/pods/p/exec?command=x", protocol)
			defer res.Body.Close()
			if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Upgrade") != protocol || res.Header.Get("X-User") != "alice" {
				t.Fatalf("code %d, header %v", res.StatusCode, res.Header)
			}
			conn := res.Body.(io.ReadWriteCloser)
			lines := bufio.NewReader(conn)
			expect := func(want string) {
				t.Helper()
				if got, err := lines.ReadString('\n'); err != nil || got != want+"\n" {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
			}
			expect("hello")
			for i := range 100 {
				fmt.Fprintf(conn, "line %d\n", i)
				expect(fmt.Sprintf("LINE %d", i))
			}
			large := strings.Repeat("x", 60_000)
			fmt.Fprintln(conn, large)
			expect(strings.ToUpper(large))
			// The client closes its side and still receives the rest.
			if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			expect("bye")
			if _, err := lines.ReadByte(); err != io.EOF {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

func TestUpgradeEndsWithEitherSide(t *testing.T) {
	gone := make(chan struct{}, 1)
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		if r.URL.Path == "/hang-up" {
			return
		}
		_, _ = io.Copy(io.Discard, buffered)
		gone <- struct{}{}
	})
	p := startProxy(t, testConfig(b.url()))
	f := startFront(t, p)

	res := rawUpgrade(t, f, "/hang-up", "x")
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Errorf("the backend hung up, the client got %v", err)
	}
	res.Body.Close()

	res = rawUpgrade(t, f, "/wait", "x")
	res.Body.Close()
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("the backend did not notice that the client has gone")
	}

	res = rawUpgrade(t, f, "/wait", "x")
	defer res.Body.Close()
	p.shutdown()
	if _, err := io.ReadAll(res.Body); err != nil && !strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "reset") {
		t.Errorf("after shutdown: %v", err)
	}
	<-gone
}

func TestRefusedUpgrade(t *testing.T) {
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/wrong":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: another\r\n\r\n")
		case "/broken":
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, "container not found", http.StatusNotFound)
		}
	})
	f := startFront(t, startProxy(t, testConfig(b.url())))
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/missing": {404, "container not found"},
		"/wrong":   {500, "another"},
		"/broken":  {503, "core tier"},
	} {
		res := rawUpgrade(t, f, path, "SPDY/3.1")
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != want.code || !strings.Contains(string(body), want.text) {
			t.Errorf("%s: code %d, %q, %v", path, res.StatusCode, body, err)
		}
	}
}

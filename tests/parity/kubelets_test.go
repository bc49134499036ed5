package parity

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/hooks"
)

// badAnswers are what a server behind the API server may answer, most of it invalid.
var badAnswers = map[string]func(http.ResponseWriter, *http.Request){
	"works":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "line\n") },
	"empty":     func(http.ResponseWriter, *http.Request) {},
	"not-found": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such container", http.StatusNotFound) },
	"forbidden": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who are you", http.StatusForbidden) },
	"status":    answerStatus,
	"broken":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) },
	"redirect":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
	"abroad": func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://example.com/", http.StatusFound)
	},
	"cookie": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		_, _ = io.WriteString(w, "line\n")
	},
	"gone":        hijacked(""),
	"no-http":     hijacked("SSH-2.0-OpenSSH_9.2\r\n"),
	"half-head":   hijacked("HTTP/1.1 200 OK\r\nContent-Len"),
	"bad-length":  hijacked("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nx"),
	"two-lengths": hijacked("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 5\r\n\r\nx"),
	"both":        hijacked("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
	"much-head":   hijacked("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 11<<20) + "\r\n\r\n"),
	"switch":      hijacked("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"),
	"continue":    hijacked("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx\n"),
}

func answerStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusConflict)
	_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","message":"busy","code":409}`)
}

// hijacked writes bytes to the connection and closes it.
func hijacked(answer string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, answer)
	}
}

// serveKubelet answers as the Pod of the path is named, /<what>/<namespace>/<pod>/<container>,
// and under /echo/ with the request.
func serveKubelet(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if parts[0] == "echo" {
		echo(w, r)
		return
	}
	if len(parts) == 4 && badAnswers[parts[2]] != nil {
		badAnswers[parts[2]](w, r)
		return
	}
	http.Error(w, "nothing is here", http.StatusNotFound)
}

// echo answers with the request.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "uri": r.RequestURI, "header": r.Header})
}

// TestKubelets asks for logs, commands, and what is behind the proxy of a Node, from kubelets
// that answer in every invalid way, that have another's certificate, and that do not answer.
func TestKubelets(t *testing.T) {
	certificate, err := hooks.NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	other, err := hooks.NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	kubelet, liar := certificate.Serve(http.HandlerFunc(serveKubelet)), other.Serve(http.HandlerFunc(serveKubelet))
	t.Cleanup(kubelet.Close)
	t.Cleanup(liar.Close)
	plain, silent := listen(t, func(c net.Conn) { _, _ = io.WriteString(c, "hello\n") }), listen(t, func(net.Conn) { <-t.Context().Done() })
	closed, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]int{"works": listenerPort(kubelet.Listener), "liar": listenerPort(liar.Listener), "plain": listenerPort(plain), "silent": listenerPort(silent), "closed": closed}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, certificate.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	started, err := startPeers(t.Context(), func(tier cluster.Tier) []string {
		if tier == cluster.Aggregator || tier == cluster.Extensions {
			return nil
		}
		return []string{"--kubelet-certificate-authority=" + ca, "--kubelet-client-certificate=" + keys.Admin.CertFile, "--kubelet-client-key=" + keys.Admin.KeyFile}
	})
	t.Cleanup(func() {
		if err := closePeers(started, t.Failed); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	p := newPairOf(t, started)
	p.createNamespace()
	for _, node := range slices.Sorted(maps.Keys(ports)) {
		p.createNode(node, ports[node])
		p.createPod("on-"+node, node)
	}
	for _, name := range slices.Sorted(maps.Keys(badAnswers)) {
		if name != "works" {
			p.createPod(name, "works")
		}
	}
	p.createPod("works", "works")
	proxied := p.createProxied(t)
	p.createPod("on-none", "none")

	t.Run("logs", func(t *testing.T) {
		p := p.in(t)
		for _, name := range slices.Sorted(maps.Keys(badAnswers)) {
			p.same(Request{Do: "GET /api/v1/namespaces/${ns}/pods/" + name + "/log"})
		}
	})
	t.Run("unreachable", func(t *testing.T) {
		p := p.in(t)
		for _, node := range append(slices.Sorted(maps.Keys(ports)), "none") {
			if node == "works" {
				continue
			}
			p.same(Request{Do: "GET /api/v1/namespaces/${ns}/pods/on-" + node + "/log"})
			p.same(Request{Do: "GET /api/v1/nodes/" + node + "/proxy/echo/"})
			if node != "silent" { // a command waits as long as its client does
				p.sameUpgrade("on-"+node, "")
			}
		}
	})
	t.Run("proxy", func(t *testing.T) {
		p := p.in(t)
		// The loopback address is refused.
		p.same(Request{Do: "GET /api/v1/nodes/works/proxy/echo/"})
		for _, path := range []string{"", "/", "/echo", "/echo/", "/echo/a%2Fb?c=d%2F&e", "/echo/../x", "/echo//x", "/none"} {
			p.same(Request{Do: "GET " + proxied + path})
		}
		for _, header := range []map[string]string{
			{"X-Forwarded-For": "192.0.2.1"}, {"Te": "trailers"}, {"Proxy-Authorization": "Basic eDp5"}, {"Cookie": "a=b"},
			{"Impersonate-User": "alice"}, {"X-Remote-User": "alice"}, {"X-Remote-Group": "system:masters"}, {"Accept-Encoding": "gzip"},
		} {
			p.same(Request{Do: "GET " + proxied + "/echo/", Headers: header})
		}
		p.same(Request{Do: "POST " + proxied + "/echo/", Body: "{}"})
		p.same(Request{Do: "DELETE " + proxied + "/echo/"})
		for _, header := range []string{"Connection: X-A\r\nX-A: b\r\n", "Connection: X-Remote-User\r\nX-Remote-User: alice\r\n", "Upgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: other\r\n", "Keep-Alive: 5\r\n", "Trailer: X-A\r\n"} {
			p.sameHTTP1("GET "+proxied+"/echo/", "Connection: close\r\n"+header)
		}
	})
	t.Run("upgrades", func(t *testing.T) {
		p := p.in(t)
		for _, name := range slices.Sorted(maps.Keys(badAnswers)) {
			p.sameUpgrade(name, "")
		}
		for name, header := range map[string]string{
			"two protocols": "Upgrade: SPDY/3.1\r\n", "a length": "Content-Length: 5\r\n", "chunks": "Transfer-Encoding: chunked\r\n", "both": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
			"another host": "Host: example.com\r\n", "much": "X: " + strings.Repeat("x", 2<<20) + "\r\n", "a bad name": "X Y: z\r\n", "a folded line": "X: y\r\n z\r\n",
		} {
			if *target == string(cluster.Tiers) && (strings.Contains(header, "Length") || strings.Contains(header, "chunked")) {
				continue // see docs/divergences.md: a tier waits for the body
			}
			t.Run(name, func(t *testing.T) { p.in(t).sameUpgrade("works", header) })
		}
	})
	// Whoever waits for a kubelet that is silent does not keep others from their answers.
	t.Run("others", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 50 {
			for i, peer := range started {
				go func() {
					vars := []map[string]string{p.reference, p.tested}[i]
					_, _ = peer.Send(ctx, Request{Do: "GET /api/v1/namespaces/${ns}/pods/on-silent/log"}, maps.Clone(vars))
				}()
			}
		}
		p := p.in(t)
		for range 10 {
			p.same(Request{Do: "GET /api/v1/namespaces/${ns}/pods/works/log"})
			p.same(Request{Do: "GET /api/v1/namespaces/${ns}/configmaps/none"})
		}
	})
}

func listenerPort(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// listen starts a server of this protocol on a port of the loopback address.
func listen(t *testing.T, serve func(net.Conn)) net.Listener {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return l
}

// createNode creates a Node whose kubelet listens on a port of the loopback address.
func (p *pair) createNode(name string, port int) {
	p.t.Helper()
	p.same(Request{Do: "POST /api/v1/nodes", Unchecked: true, Object: map[string]any{"metadata": map[string]any{"name": name}}})
	p.same(Request{Do: "PATCH /api/v1/nodes/" + name + "/status", Unchecked: true, Headers: map[string]string{"Content-Type": "application/merge-patch+json"}, Object: map[string]any{"status": map[string]any{
		"addresses":       []any{map[string]any{"type": "InternalIP", "address": "127.0.0.1"}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": port}},
	}}})
}

func (p *pair) createPod(name, node string) {
	p.t.Helper()
	p.same(Request{Do: "POST /api/v1/namespaces/${ns}/pods", Unchecked: true, Object: map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"nodeName": node, "containers": []any{map[string]any{"name": "main", "image": "none"}}},
	}})
}

// createProxied creates a Pod whose address is one of this machine's, where a server answers as
// a kubelet does, and returns the path of its proxy.
func (p *pair) createProxied(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(addresses, func(a net.Addr) bool {
		ip := a.(*net.IPNet).IP
		return ip.To4() != nil && ip.IsGlobalUnicast()
	})
	if i < 0 {
		t.Fatal("this machine has no address that a Pod may have: the loopback address is none")
	}
	address := addresses[i].(*net.IPNet).IP.String()
	server := &http.Server{Handler: http.HandlerFunc(serveKubelet), ReadHeaderTimeout: requestTimeout}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	p.createPod("proxied", "works")
	p.same(Request{Do: "PATCH /api/v1/namespaces/${ns}/pods/proxied/status", Unchecked: true, Headers: map[string]string{"Content-Type": "application/merge-patch+json"}, Object: map[string]any{
		"status": map[string]any{"phase": "Running", "podIP": address, "podIPs": []any{map[string]any{"ip": address}}},
	}})
	return fmt.Sprintf("/api/v1/namespaces/${ns}/pods/proxied:%d/proxy", listenerPort(listener))
}

// sameUpgrade asks for a command in a Pod, with further lines of a header, and compares the
// answers to the upgrade.
func (p *pair) sameUpgrade(pod, header string) {
	p.t.Helper()
	p.sameHTTP1("GET /api/v1/namespaces/${ns}/pods/"+pod+"/exec?command=x&stdout=true", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n"+header)
}

// sameHTTP1 sends a request by HTTP/1.1, with these lines as its header, and compares the answers.
func (p *pair) sameHTTP1(do, header string) {
	p.t.Helper()
	want, err := p.peers[0].sendHTTP1(p.t.Context(), expand(do, p.reference), header)
	if err != nil {
		p.t.Fatalf("%s: kube-apiserver: %v", do, err)
	}
	got, err := p.peers[1].sendHTTP1(p.t.Context(), expand(do, p.tested), header)
	if err != nil {
		p.t.Errorf("%s: %v; kube-apiserver answers %d", do, err, want.Code)
		return
	}
	p.compare(Request{Do: do}, want, got)
}

// sendHTTP1 sends a request with these lines as its header and returns the answer. One with
// status code 0 is a closed connection.
func (p *Peer) sendHTTP1(ctx context.Context, do, header string) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pair, err := p.Cluster.PKI.Admin.Load()
	if err != nil {
		return nil, err
	}
	roots, err := pki.LoadPool(p.Cluster.PKI.ClusterCA.CertFile)
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}
	conn, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(p.Cluster.URL, "https://"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	// A server that refuses the header closes the connection before it has read all of it.
	go func() {
		_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: kubernetes\r\n%s\r\n", do, header)
	}()
	answered := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answered, nil)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &Answer{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &Answer{Code: resp.StatusCode, Header: resp.Header}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// What follows are frames, until the server closes the connection.
		if a.Body, err = io.ReadAll(answered); err != nil {
			return nil, fmt.Errorf("after the upgrade: %w", err)
		}
		return a, nil
	}
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		return nil, fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	return a, nil
}

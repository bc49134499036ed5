package aggregator

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"triune.dev/shared/process/pki"
)

func TestProxyAssertsIdentityAndNothingElse(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	a := f.do(http.MethodPost, flundersPath+"/a%2Fb?dryRun=All&x=1", `{"a":1}`,
		"Test-User", "alice", "Content-Type", "application/json",
		"Authorization", "Bearer secret",
		"X-Remote-User", "root", "X-Remote-Group", "system:masters", "X-Remote-Uid", "0", "X-Remote-Extra-Forged", "yes",
		"Audit-Id", "11111111-2222-3333-4444-555555555555")
	if a.code != http.StatusOK {
		t.Fatalf("answer %d: %s", a.code, a.body)
	}
	var got seen
	a.decode(t, &got)
	for name, want := range map[string][]string{
		"X-Remote-User":                      {"alice"},
		"X-Remote-Uid":                       {"uid-of-alice"},
		"X-Remote-Group":                     {"testers", "system:authenticated"},
		"X-Remote-Extra-Example.com%2fscope": {"a", "b"},
		"X-Remote-Extra-Forged":              nil,
		"Authorization":                      nil,
		"Content-Type":                       {"application/json"},
	} {
		if diff := cmp.Diff(want, got.Header[name]); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if got.Method != http.MethodPost || got.Body != `{"a":1}` || got.Query != "dryRun=All&x=1" || !strings.HasSuffix(got.Path, "/flunders/a%2Fb") {
		t.Errorf("the request arrived as %s %s?%s %s", got.Method, got.Path, got.Query, got.Body)
	}
	if got.Proxy != "front-proxy-client" || got.Proto != "HTTP/2.0" {
		t.Errorf("proxy certificate of %q over %s", got.Proxy, got.Proto)
	}
	if got.Header.Get("Audit-Id") == "" {
		t.Error("the audit ID was not passed on")
	}
	if cors := a.header.Get("Access-Control-Allow-Origin"); cors != "" {
		t.Errorf("the extension server decided about CORS: %q", cors)
	}
}

// This tier authorizes requests for a remote APIService: a forbidden one does not reach the extension
// server.
func TestProxiedRequestsAreAuthorized(t *testing.T) {
	f := newFixture(t).ready()
	e := f.flunders(t)
	before := e.asked.Load()
	if a := f.get(flundersPath, "Test-User", "mallory"); a.code != http.StatusForbidden {
		t.Errorf("answer %d: %s, want 403", a.code, a.body)
	}
	if e.asked.Load() != before {
		t.Error("a forbidden request reached the extension server")
	}
}

func TestImpersonationIsNotForwarded(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	var got seen
	f.get(flundersPath, "Impersonate-User", "bob").decode(t, &got)
	if got.Header.Get("X-Remote-User") != "bob" || got.Header.Get("Impersonate-User") != "" {
		t.Errorf("X-Remote-User %q, Impersonate-User %q", got.Header.Get("X-Remote-User"), got.Header.Get("Impersonate-User"))
	}
}

func TestOtherRequestsAreForwarded(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	for _, path := range []string{"/api/v1/pods", "/apis/apps/v1/deployments", "/apis/wardle.example.com/v1beta1/flunders", "/apis/unknown/v1/x", "/nothing"} {
		if a := f.get(path, "Test-User", "mallory"); a.code != http.StatusTeapot || a.body != "next tier: GET "+path+" for mallory" {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
	}
}

func TestRedirectsAreRefused(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	a := f.get(flundersPath + "/x/redirect")
	if a.code != http.StatusBadGateway || a.body != "the backend attempted to redirect this request, which is not permitted" || a.header.Get("Location") != "" {
		t.Errorf("answer %d %q, Location %q", a.code, a.body, a.header.Get("Location"))
	}
}

// raw opens an HTTP/1.1 connection to the tier.
func (f *fixture) raw(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	roots := f.client.Transport.(*http.Transport).TLSClientConfig.RootCAs
	conn, err := tls.Dial("tcp", strings.TrimPrefix(f.url, "https://"), &tls.Config{RootCAs: roots, ServerName: "example.com", NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn, bufio.NewReader(conn)
}

// A proxy removes the headers that Connection nominates; a client must not be able to remove identity
// headers in this way.
func TestConnectionHeaderRemovesNoIdentity(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	conn, reader := f.raw(t)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nTest-User: alice\r\nConnection: close, X-Remote-Group, X-Remote-User, X-Remote-Extra-Example.com%%2fscope\r\n\r\n", flundersPath)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got seen
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	for name, want := range map[string]string{"X-Remote-User": "alice", "X-Remote-Group": "testers", "X-Remote-Extra-Example.com%2fscope": "a"} {
		if values := got.Header[name]; len(values) == 0 || values[0] != want {
			t.Errorf("%s: %q, want %q", name, values, want)
		}
	}
}

func TestUpgradeReachesTheServer(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		t.Run(protocol, func(t *testing.T) {
			conn, reader := f.raw(t)
			fmt.Fprintf(conn, "GET %s/x/upgrade HTTP/1.1\r\nHost: x\r\nTest-User: alice\r\nX-Remote-User: root\r\nConnection: Upgrade, X-Remote-User\r\nUpgrade: %s\r\n\r\n", flundersPath, protocol)
			resp, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != protocol {
				t.Fatalf("status %s, Upgrade %q", resp.Status, resp.Header.Get("Upgrade"))
			}
			if line, err := reader.ReadString('\n'); err != nil || line != "hello alice from wardle\n" {
				t.Fatalf("got %q, %v", line, err)
			}
			fmt.Fprint(conn, "ping\n")
			if line, err := reader.ReadString('\n'); err != nil || line != "ping\n" {
				t.Fatalf("got %q, %v", line, err)
			}
		})
	}
}

// An event of a watch arrives as soon as it is sent.
func TestStreamsAreFlushed(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	in, out := io.Pipe()
	defer out.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+flundersPath+"/x/stream", in)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		fmt.Fprintf(out, "event %d\n", i)
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("got %q, %v", line, err)
		}
	}
}

func TestUnavailableIsAnswered503(t *testing.T) {
	f := newFixture(t).ready()
	e := f.startExtension("wardle")
	e.broken.Store(true)
	f.byName("wardle")
	f.register("wardle.example.com", "v1alpha1", "wardle", e.port())
	f.available("v1alpha1.wardle.example.com", apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	// etcd has the condition before the table.
	f.eventually("requests are refused", func() (bool, string) {
		a := f.get(flundersPath)
		return a.code == http.StatusServiceUnavailable && a.body == "service unavailable\n", fmt.Sprint(a.code, a.body)
	})
}

func TestAvailability(t *testing.T) {
	f := newFixture(t).ready()
	e := f.startExtension("wardle")
	second := f.startExtension("second")
	f.byName("wardle")
	f.byName("second")
	f.byEndpoints("empty")
	strangers, err := pki.Ensure(t.TempDir()+"/strangers", pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := f.pki
	tests := []struct {
		name, group, service string
		port                 int32
		change               func(*apiregistrationv1.APIService)
		status               apiregistrationv1.ConditionStatus
		reason, message      string
	}{
		{name: "right", group: "right.example.com", service: "wardle", port: e.port(), status: "True", reason: "Passed", message: "all checks passed"},
		{name: "no such service", group: "none.example.com", service: "none", port: 443, status: "False", reason: "ServiceNotFound",
			message: `service/none in "default" is not present`},
		{name: "service without endpoints", group: "empty.example.com", service: "empty", port: 443, status: "False", reason: "EndpointsNotFound",
			message: `cannot find endpointslices for service/empty in "default"`},
		{name: "service does not listen there", group: "port.example.com", service: "empty", port: 444, status: "False", reason: "ServicePortError",
			message: `service/empty in "default" is not listening on port 444`},
		{name: "CA bundle of somebody else", group: "ca.example.com", service: "second", port: second.port(), status: "False", reason: "FailedDiscoveryCheck",
			message: "certificate signed by unknown authority",
			change: func(a *apiregistrationv1.APIService) {
				f.pki = strangers
				a.Spec.CABundle = f.clusterCA()
				f.pki = other
			}},
		{name: "no CA bundle, no verification", group: "insecure.example.com", service: "second", port: second.port(), status: "True", reason: "Passed", message: "all checks passed",
			change: func(a *apiregistrationv1.APIService) {
				a.Spec.CABundle, a.Spec.InsecureSkipTLSVerify = nil, true
			}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			change := test.change
			if change == nil {
				change = func(*apiregistrationv1.APIService) {}
			}
			f.register(test.group, "v1", test.service, test.port, change)
			if got := f.available("v1."+test.group, test.status, test.reason); !strings.Contains(got, test.message) {
				t.Errorf("message %q, want it to contain %q", got, test.message)
			}
		})
	}
	local := &apiregistrationv1.APIService{}
	local.Name = "v1.local.example.com"
	local.Spec = apiregistrationv1.APIServiceSpec{Group: "local.example.com", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1}
	f.register("local.example.com", "v1", "", 0, func(a *apiregistrationv1.APIService) { *a = *local })
	f.available("v1.local.example.com", apiregistrationv1.ConditionTrue, "Local")
	f.eventually("/metrics tells what is unavailable", func() (bool, string) {
		a := f.get("/metrics")
		return a.code == http.StatusOK && strings.Contains(a.body, `aggregator_unavailable_apiservice{name="v1.none.example.com"} 1`) &&
			strings.Contains(a.body, `aggregator_unavailable_apiservice{name="v1.local.example.com"} 0`), fmt.Sprintf("%d %.2000s", a.code, a.body)
	})
}

// A request that cannot reach the server causes an immediate check, and a server that is down is
// probed often enough to recover within seconds.
func TestServerGoesAndComesBack(t *testing.T) {
	f := newFixture(t).ready()
	e := f.flunders(t)
	address := e.server.Listener.Addr().String()
	e.stop()
	if a := f.get(flundersPath); a.code != http.StatusServiceUnavailable {
		t.Errorf("answer %d: %s, want 503", a.code, a.body)
	}
	f.available("v1alpha1.wardle.example.com", apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	f.serve(e, address)
	f.available("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")
	f.served()
}

// Requests are balanced, and no request waits for an endpoint that is down.
func TestEndpointsAreBalanced(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Proxy.EndpointRouting = true }).ready()
	first, second := f.startExtension("first"), f.startExtension("second")
	f.byEndpoints("wardle", first.port(), second.port())
	f.register("wardle.example.com", "v1alpha1", "wardle", 443)
	f.served()
	before := [2]int32{first.asked.Load(), second.asked.Load()}
	for range 20 {
		if a := f.get(flundersPath); a.code != http.StatusOK {
			t.Fatalf("answer %d: %s", a.code, a.body)
		}
	}
	if one, two := first.asked.Load()-before[0], second.asked.Load()-before[1]; one < 5 || two < 5 { // questions of our own take turns too
		t.Errorf("requests were spread %d to %d", one, two)
	}
	second.stop()
	// A POST that is being written when its connection ends may not be sent again; a GET may.
	// So GETs use up the connections to the endpoint that is gone.
	for range 20 {
		if a := f.get(flundersPath); a.code != http.StatusOK {
			t.Fatalf("with one endpoint gone: answer %d: %s", a.code, a.body)
		}
	}
	for range 20 {
		if a := f.do(http.MethodPost, flundersPath, "body"); a.code != http.StatusOK || !strings.Contains(a.body, `"Body":"body"`) {
			t.Fatalf("with one endpoint gone: answer %d: %s", a.code, a.body)
		}
	}
}

// A rotation of the client certificate needs no restart.
func TestClientCertificateIsReloaded(t *testing.T) {
	f := newFixture(t).ready()
	f.flunders(t)
	renewed, err := pki.Ensure(f.pki.Dir, pki.Options{Tiers: []string{"extension"}, ExtraNames: []string{"wardle.default.svc", "second.default.svc"},
		Clients: []pki.Client{{Name: "renewed-proxy", CommonName: "renewed-proxy", Authority: pki.FrontProxyCA}}})
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, renewed.Clients["renewed-proxy"].KeyFile, f.pki.FrontProxyClient.KeyFile)
	copyFile(t, renewed.Clients["renewed-proxy"].CertFile, f.pki.FrontProxyClient.CertFile)
	f.eventually("the new certificate is shown", func() (bool, string) {
		var got seen
		f.get(flundersPath).decode(t, &got)
		return got.Proxy == "renewed-proxy", got.Proxy
	})
}

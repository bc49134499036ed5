package nexttier

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/transport/distrust"
)

// files copies the credentials, so that a test can replace them.
func files(t *testing.T, c *Config) {
	t.Helper()
	dir := t.TempDir()
	for name, field := range map[string]*string{"ca.crt": &c.CAFile, "client.crt": &c.CertFile, "client.key": &c.KeyFile} {
		path := filepath.Join(dir, name)
		replace(t, path, *field)
		*field = path
	}
}

func replace(t *testing.T, path, by string) {
	t.Helper()
	data, err := os.ReadFile(by)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedFrontProxyCertificateIs503(t *testing.T) {
	var hits atomic.Int64
	b := startBackend(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	c := testConfig(b.url())
	c.CertFile, c.KeyFile = otherPKI.FrontProxyClient.CertFile, otherPKI.FrontProxyClient.KeyFile
	files(t, &c)
	p := startProxy(t, c)
	f := startFront(t, p)
	refused := func(path string) {
		t.Helper()
		a := f.get(t, path)
		if a.code != 503 || a.status.Reason != metav1.StatusReasonInternalError || !strings.Contains(a.status.Message, "core tier") || a.header.Get("Www-Authenticate") != "" {
			t.Errorf("%s: answer %+v", path, a)
		}
	}
	refused("/api/v1/pods")
	refused("/api/v1/pods?watch=1")
	res := rawUpgrade(t, f, "/apis/x", "SPDY/3.1")
	res.Body.Close()
	if res.StatusCode != 503 {
		t.Errorf("upgrade: code %d", res.StatusCode)
	}
	refused("/api/v1/namespaces/n/pods/p/proxy/x")
	eventually(t, "the health check tells", func() bool { return p.Check(nil) != nil })
	if hits.Load() != 0 {
		t.Error("a request was served")
	}

	// Repair the certificate, key first; nothing may fail in between.
	replace(t, c.KeyFile, testPKI.FrontProxyClient.KeyFile)
	refused("/api/v1/pods")
	replace(t, c.CertFile, testPKI.FrontProxyClient.CertFile)
	eventually(t, "requests are served again", func() bool { return f.get(t, "/api/v1/pods").code == 200 })
	eventually(t, "the health check passes", func() bool { return p.Check(nil) == nil })
}

// An unmarked 401 is meant for the client: the request may have had effects, and it says nothing
// about the front proxy.
func TestUnmarked401IsForwarded(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"a webhook's": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Www-Authenticate", "Basic")
			http.Error(w, "who are you", http.StatusUnauthorized)
		},
		"forged": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Www-Authenticate", "Basic")
			// All that a handler could know about the challenge.
			for name, values := range r.Header {
				if strings.HasPrefix(name, "X-Remote-") {
					w.Header()[distrust.EchoHeader] = values
				}
			}
			w.Header().Add(distrust.EchoHeader, "guessed")
			http.Error(w, "who are you", http.StatusUnauthorized)
		},
	}
	paths := []string{"", "/status", "/proxy/login", "/log", "/exec", "/attach", "/portforward"}
	for name, handler := range answers {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(name+" "+method, func(t *testing.T) {
				one, other := startBackend(t, handler), startBackend(t, handler)
				p := startProxy(t, testConfig(urls(one, other)...))
				f := startFront(t, p)
				for _, path := range paths {
					req := f.request(t, method, "/api/v1/namespaces/n/pods/p"+path, nil)
					// Challenges of clients are ignored.
					req.Header.Set(distrust.ChallengeHeader, "guessed")
					a := f.do(t, req)
					if a.code != 401 || a.body != "who are you\n" || a.header.Get("Www-Authenticate") != "Basic" || a.header[distrust.EchoHeader] != nil {
						t.Errorf("%s: answer %+v", path, a)
					}
				}
				if n := one.authentications.Load() + other.authentications.Load(); n != int64(len(paths)) {
					t.Errorf("%d requests became %d", len(paths), n)
				}
				if err := p.Check(nil); err != nil {
					t.Errorf("health check: %v", err)
				}
			})
		}
	}
}

func TestTrustingReplicaIsPreferred(t *testing.T) {
	var hits atomic.Int64
	good := startBackend(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	// A replica without the new front-proxy CA.
	bad := startBackend(t, func(http.ResponseWriter, *http.Request) {}, func(b *backend) { b.trusts = otherPKI })
	f := startFront(t, startProxy(t, testConfig(good.url(), bad.url())))
	for range 20 {
		a := f.do(t, f.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader("{}")))
		if a.code != 200 {
			t.Errorf("answer %+v", a)
		}
	}
	if hits.Load() != 20 {
		t.Errorf("%d requests were carried out", hits.Load())
	}
}

// Tiers of releases without marks: their probes show the refusal, and no unsafe request is sent twice.
func TestDistrustWithoutAMark(t *testing.T) {
	old := func(b *backend) { b.trusts, b.old = otherPKI, true }
	one, other := startBackend(t, reply("ok"), old), startBackend(t, reply("ok"), old)
	p := startProxy(t, testConfig(urls(one, other)...))
	f := startFront(t, p)
	eventually(t, "the probes tell", func() bool {
		for _, r := range *p.replicas.Load() {
			if !r.distrusts.Load() {
				return false
			}
		}
		return true
	})
	a := f.do(t, f.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader("{}")))
	if a.code != 503 || a.status.Reason != metav1.StatusReasonInternalError {
		t.Errorf("answer %+v", a)
	}
	if n := one.authentications.Load() + other.authentications.Load(); n != 1 {
		t.Errorf("a POST was sent %d times", n)
	}
}

func TestNewCredentialsAreUsedForNewRequests(t *testing.T) {
	serials := make(chan string, 1)
	b := startBackend(t, func(_ http.ResponseWriter, r *http.Request) {
		serials <- r.TLS.PeerCertificates[0].SerialNumber.String()
	})
	c := testConfig(b.url())
	files(t, &c)
	// A later certificate of the same CA, like a renewal.
	renewed, err := pki.Ensure(testPKI.Dir, pki.Options{Clients: []pki.Client{{
		Name: "renewed", CommonName: pki.FrontProxyClientName, Authority: pki.FrontProxyCA,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, c)
	f := startFront(t, p)
	get := func() string { f.get(t, "/api"); return <-serials }
	first := get()
	if second := get(); second != first {
		t.Errorf("the certificate changed by itself")
	}
	replace(t, c.KeyFile, renewed.Clients["renewed"].KeyFile)
	replace(t, c.CertFile, renewed.Clients["renewed"].CertFile)
	eventually(t, "the new certificate is shown", func() bool { return get() != first })
	eventually(t, "one generation of connections is left", func() bool { return (*p.replicas.Load())[0].pools[short].size() <= shortConnections })

	// A CA that did not issue the replica's certificate makes it unavailable.
	replace(t, c.CAFile, otherPKI.ClusterCA.CertFile)
	eventually(t, "the replica is refused", func() bool {
		a := f.get(t, "/api")
		if a.code == 200 {
			<-serials
		}
		return a.code == 503
	})
}

func TestUnreadableCredentialsKeepTheOldOnes(t *testing.T) {
	b := startBackend(t, reply("ok"))
	c := testConfig(b.url())
	files(t, &c)
	c.ProbeInterval = 40 * time.Millisecond
	p := startProxy(t, c)
	f := startFront(t, p)
	if err := os.Remove(c.CertFile); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.CAFile, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range *p.replicas.Load() {
		r.replaceConns() // connect with the current credentials
	}
	if a := f.get(t, "/api"); a.code != 200 {
		t.Errorf("answer %+v", a)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
	})
	c := testConfig(b.url())
	c.Registerer = registry
	p := startProxy(t, c)
	if _, err := New(c); err == nil {
		t.Error("two proxies to one tier registered the same metrics")
	}
	f := startFront(t, p)
	f.get(t, "/api")
	f.get(t, "/missing")
	f.get(t, "/missing?watch=1")
	eventually(t, "ready", func() bool { return conditionOf(p, b.address) == ready })
	b.kill()
	f.get(t, "/api")
	eventually(t, "down", func() bool { return conditionOf(p, b.address) == down })
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP triune_next_tier_replicas Replicas of the next tier, by condition.
# TYPE triune_next_tier_replicas gauge
triune_next_tier_replicas{condition="down",tier="core"} 1
triune_next_tier_replicas{condition="ready",tier="core"} 0
triune_next_tier_replicas{condition="unready",tier="core"} 0
# HELP triune_next_tier_requests_in_flight Requests forwarded to the next tier and not yet answered, by kind.
# TYPE triune_next_tier_requests_in_flight gauge
triune_next_tier_requests_in_flight{kind="short",tier="core"} 0
triune_next_tier_requests_in_flight{kind="stream",tier="core"} 0
triune_next_tier_requests_in_flight{kind="upgrade",tier="core"} 0
`), "triune_next_tier_replicas", "triune_next_tier_requests_in_flight")
	if err != nil {
		t.Error(err)
	}
	for name, counter := range map[string]prometheus.Counter{
		"2xx": p.metrics.byClass[short][2],
		"4xx": p.metrics.byClass[short][4],
	} {
		if got := testutil.ToFloat64(counter); got != 1 {
			t.Errorf("short requests answered %s: %v", name, got)
		}
	}
	if got := testutil.ToFloat64(p.metrics.byClass[stream][4]); got != 1 {
		t.Errorf("streams answered 4xx: %v", got)
	}
	if got := testutil.ToFloat64(p.metrics.byOutcome[short][outcomeUnavailable]); got != 1 {
		t.Errorf("short requests unavailable: %v", got)
	}
	if got := testutil.ToFloat64(p.metrics.failures); got != 1 {
		t.Errorf("ejections: %v", got)
	}
}

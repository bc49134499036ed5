package nexttier

import (
	"crypto/tls"
	"net"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unavailable checks the answer of a proxy without available replicas, and its duration.
func unavailable(t *testing.T, f *front, method string) {
	t.Helper()
	start := time.Now()
	a := f.do(t, f.request(t, method, "/api/v1/pods", nil))
	if took := time.Since(start); took > time.Second {
		t.Errorf("answered after %v", took)
	}
	want := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 503, Reason: metav1.StatusReasonServiceUnavailable,
		Message: "the core tier is not available", Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
	}
	if a.code != 503 || a.header.Get("Retry-After") != "1" || a.header.Get("Content-Type") != "application/json" || a.status.String() != want.String() {
		t.Errorf("answer %+v", a)
	}
}

func TestUnavailableWithinASecond(t *testing.T) {
	// Two addresses that accept connections and never send anything.
	var silent []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		silent = append(silent, "https://"+l.Addr().String())
	}
	refusing := startBackend(t, reply("x"))
	refusing.kill()
	foreign := startBackend(t, reply("x"))
	foreign.kill()
	cert, err := otherPKI.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	foreign.tls.Certificates = []tls.Certificate{cert}
	foreign.start()

	cases := map[string][]string{
		"connection refused":            {refusing.url()},
		"certificate of another CA":     {foreign.url()},
		"silent":                        silent[:1],
		"three that are silent":         silent,
		"name that cannot be looked up": {"https://nowhere.invalid:6443"},
	}
	for name, targets := range cases {
		t.Run(name, func(t *testing.T) {
			c := testConfig(targets...)
			c.Resolver = fakeResolver{}
			p := startProxy(t, c)
			f := startFront(t, p)
			for range 2 {
				unavailable(t, f, http.MethodGet)
				unavailable(t, f, http.MethodPost)
			}
			if p.Check(nil) == nil {
				t.Error("the health check says that the tier can be reached")
			}
			// The same for an upgrade.
			res := rawUpgrade(t, f, "/api/v1/namespaces/n/pods/p/exec", "SPDY/3.1")
			defer res.Body.Close()
			if res.StatusCode != 503 {
				t.Errorf("upgrade: code %d", res.StatusCode)
			}
		})
	}
}

func TestRecoveredTierIsUsedImmediately(t *testing.T) {
	b := startBackend(t, reply("ok"))
	p := startProxy(t, testConfig(b.url()))
	f := startFront(t, p)
	eventually(t, "health check passes", func() bool { return p.Check(nil) == nil })
	b.kill()
	unavailable(t, f, http.MethodGet)
	eventually(t, "health check fails", func() bool { return p.Check(nil) != nil })
	b.start()
	// A replica that is down is tried if there is no other.
	if a := f.get(t, "/api"); a.code != 200 {
		t.Errorf("answer %+v", a)
	}
	eventually(t, "health check passes", func() bool { return p.Check(nil) == nil })
}

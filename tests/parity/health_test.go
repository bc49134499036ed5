package parity

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHealth compares the health endpoints. The checks of hooks after start, and
// of dependencies that only one of the two has, are each server's own;
// everything else is part of the API.
func TestHealth(t *testing.T) {
	for _, path := range []string{
		"/healthz?verbose", "/livez?verbose", "/readyz?verbose",
		"/readyz?verbose&exclude=etcd", "/readyz?exclude=etcd&exclude=ping",
		"/readyz?verbose&exclude=none-such", "/readyz?exclude=none-such",
		"/livez/etcd", "/healthz/log?verbose", "/readyz?verbose=false",
	} {
		t.Run(path, func(t *testing.T) {
			var answers [2]*Answer
			for i, peer := range []*Peer{peers.reference, peers.tested} {
				a, err := peer.Send(t.Context(), Request{Do: "GET " + path}, nil)
				if err != nil {
					t.Fatal(err)
				}
				answers[i] = a
			}
			if answers[0].Code != answers[1].Code {
				t.Errorf("status %d, want %d\n%s", answers[1].Code, answers[0].Code, answers[1].Body)
			}
			if diff := cmp.Diff(withoutHooks(answers[0].Body), withoutHooks(answers[1].Body)); diff != "" {
				t.Errorf("(-kube-apiserver +tested):\n%s", diff)
			}
			for _, name := range []string{"Content-Type", "X-Content-Type-Options", "Cache-Control"} {
				if want, got := answers[0].Header.Get(name), answers[1].Header.Get(name); want != got {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		})
	}
}

var ownChecks = []string{"poststarthook/", "autoregister-completion", "nats ", "event-log ", "apiservice-", "settings ", "tier-",
	// kube-apiserver calls itself over a socket with a certificate of its own;
	// Triune calls itself without one.
	"loopback-serving-certificate"}

func withoutHooks(body []byte) []string {
	lines := strings.Split(string(body), "\n")
	return slices.DeleteFunc(lines, func(line string) bool {
		return slices.ContainsFunc(ownChecks, func(name string) bool { return strings.Contains(line, "]"+name) })
	})
}

package parity

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHealth compares the health endpoints: everything that kube-apiserver checks is checked,
// under its name, and a request at the first tier lists what all tiers check.
func TestHealth(t *testing.T) {
	for _, path := range []string{
		"/healthz?verbose", "/livez?verbose", "/readyz?verbose",
		"/readyz?verbose&exclude=etcd", "/readyz?exclude=etcd&exclude=ping",
		"/readyz?verbose&exclude=none-such", "/readyz?exclude=none-such",
		"/readyz?verbose&exclude=poststarthook/crd-informer-synced&exclude=none-such&exclude=poststarthook/bootstrap-controller",
		"/livez/etcd", "/healthz/log?verbose", "/readyz?verbose=false",
		"/livez/poststarthook/crd-informer-synced", "/readyz/poststarthook/bootstrap-controller",
		"/healthz/autoregister-completion", "/livez/loopback-serving-certificate",
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
			if diff := cmp.Diff(sharedChecks(answers[0].Body), sharedChecks(answers[1].Body)); diff != "" {
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

// ownChecks are the checks that only Triune has.
var ownChecks = []string{
	"nats", "event-log", "settings", "apiservice-registration", "apiservice-discovery",
	"poststarthook/triune-settings", "poststarthook/triune-way-to-core", "poststarthook/triune-advertise",
}

// sharedChecks returns the lines of an answer, those of checks sorted, without Triune's own.
func sharedChecks(body []byte) []string {
	var checks, rest []string
	for line := range strings.Lines(string(body)) {
		name, isCheck := strings.CutPrefix(line, "[+]")
		if name, _, _ = strings.Cut(name, " "); !isCheck {
			rest = append(rest, line)
		} else if !slices.Contains(ownChecks, name) {
			checks = append(checks, line)
		}
	}
	slices.Sort(checks)
	return append(checks, rest...)
}

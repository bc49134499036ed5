package parity

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/cluster"
)

// TestWrittenCases sends every case of testdata to both servers.
func TestWrittenCases(t *testing.T) {
	files, err := LoadCases("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			for _, c := range files[file] {
				t.Run(c.Name, func(t *testing.T) {
					t.Parallel()
					pair := newPair(t)
					if c.usesNamespace() {
						pair.createNamespace()
					}
					for i, r := range c.Steps {
						if !pair.same(r) {
							t.Logf("in step %d of %d", i+1, len(c.Steps))
						}
					}
				})
			}
		})
	}
}

// pair is a conversation with both servers; each has its own variables.
type pair struct {
	t                 *testing.T
	peers             [2]*Peer // kube-apiserver and the server under test
	reference, tested map[string]string
	normalisers       [2]*Normaliser
}

var namespaces atomic.Int64

// newPair starts a conversation. Its namespace has the same name on both servers and must
// be created first.
func newPair(t *testing.T) *pair {
	t.Helper()
	return newPairOf(t, [2]*Peer{peers.reference, peers.tested})
}

func newPairOf(t *testing.T, peers [2]*Peer) *pair {
	t.Helper()
	ns := fmt.Sprintf("case-%d", namespaces.Add(1))
	p := &pair{t: t, peers: peers, reference: map[string]string{"ns": ns}, tested: map[string]string{"ns": ns}}
	for i, peer := range peers {
		p.normalisers[i] = peer.normaliser()
	}
	return p
}

func (p *Peer) normaliser() *Normaliser {
	return &Normaliser{Now: time.Now(), Hosts: []string{strings.TrimPrefix(p.Cluster.URL, "https://")}}
}

func (p *pair) createNamespace() {
	p.t.Helper()
	ns := p.reference["ns"]
	p.same(Request{Do: "POST /api/v1/namespaces", Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}}, Unchecked: true})
	p.same(Request{Do: "POST /api/v1/namespaces/${ns}/serviceaccounts", Object: map[string]any{"metadata": map[string]any{"name": "default"}}, Unchecked: true})
}

// same sends a request to both servers and reports whether the answers are equal.
func (p *pair) same(r Request) bool {
	p.t.Helper()
	want, got := p.answers(r)
	if r.Unchecked {
		for name, a := range map[string]*Answer{p.peers[0].Name: want, p.peers[1].Name: got} {
			if a.Code >= http.StatusBadRequest {
				p.t.Fatalf("%s: %s answered %d: %s", r.Do, name, a.Code, a.Body)
			}
		}
		return true
	}
	return p.compare(r, want, got)
}

// answers sends a request to both servers.
func (p *pair) answers(r Request) (want, got *Answer) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), requestTimeout)
	defer cancel()
	want, err := sendUntil(ctx, p.peers[0], r, p.reference)
	if err != nil {
		p.t.Fatalf("%s: %v", r.Do, err)
	}
	got, err = sendUntil(ctx, p.peers[1], r, p.tested)
	if err != nil {
		p.t.Fatalf("%s: %v", r.Do, err)
	}
	return want, got
}

// sendUntil repeats a request until every replica's answer contains r.Until.
func sendUntil(ctx context.Context, peer *Peer, r Request, vars map[string]string) (*Answer, error) {
	var last *Answer
	for seen := 0; ; {
		a, err := peer.Send(ctx, r, vars)
		switch {
		case err != nil && last != nil:
			return nil, fmt.Errorf("%s does not say %q: %d: %s", peer.Name, r.Until, last.Code, last.Body)
		case err != nil || r.Until == "":
			return a, err
		case strings.Contains(string(a.Body), expand(r.Until, vars)):
			if seen++; seen == sightings*(*replicas) {
				return a, nil
			}
			continue
		}
		last, seen = a, 0
		select {
		case <-ctx.Done(): // the next request returns the error
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *pair) compare(r Request, want, got *Answer) bool {
	p.t.Helper()
	p.normalisers[0].Volatile, p.normalisers[1].Volatile = r.Volatile, r.Volatile
	wantNormal, err := want.Normal(p.normalisers[0])
	if err != nil {
		p.t.Fatalf("%s: kube-apiserver: %v\n%.2000s", r.Do, err, want.Body)
	}
	if tested := p.peers[1].Cluster.Config.Topology; tested != cluster.KubeAPIServer {
		wantNormal = expected(tested, r, wantNormal)
	}
	gotNormal, err := got.Normal(p.normalisers[1])
	if err != nil {
		p.t.Errorf("%s: %v\n%d %v %.2000s", r.Do, err, got.Code, got.Header, got.Body)
		return false
	}
	switch {
	case r.Do == "GET /":
		gotNormal = index(gotNormal)
	case strings.HasSuffix(strings.TrimRight(r.Do, "/"), " /version"):
		gotNormal = version(gotNormal)
	}
	if diff := cmp.Diff(wantNormal, gotNormal); diff != "" {
		p.t.Errorf("%s (-kube-apiserver +tested):\n%s", r.Do, limit(diff, 6000))
		return false
	}
	return true
}

func limit(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + fmt.Sprintf("\n… and %d bytes more", len(s)-n)
}

package twins

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/parity"
)

// twin is one of the two servers, with its etcd.
type twin struct {
	*parity.Peer
	etcd *clientv3.Client
}

// twins has the reference and the server under test, in this order.
type twins struct {
	both [2]twin
	// filled is the revision of the etcd when it was copied; its history is compacted up to
	// compacted.
	filled, compacted int64
	content           content
}

// startTwins fills an etcd through kube-apiserver and starts the server under test with a
// copy of it.
func startTwins(t *testing.T, flags ...string) *twins {
	t.Helper()
	// The test compacts etcd itself: the history it needs must remain available no matter
	// how long the test takes.
	flags = append(flags, "--etcd-compaction-interval=0s",
		// These write, and the less is written, the better.
		"--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false")
	all := map[cluster.Tier][]string{}
	for _, tier := range []cluster.Tier{cluster.Tier(cluster.KubeAPIServer), cluster.Tier(cluster.Triune), cluster.Aggregator, cluster.Core, cluster.Extensions} {
		all[tier] = flags
		if tier != cluster.Aggregator && tier != cluster.Extensions {
			all[tier] = append(slices.Clone(flags), "--endpoint-reconciler-type=none")
		}
	}
	if *target == string(cluster.Tiers) {
		// Core publishes that name for extension API servers, by itself.
		reference := cluster.Tier(cluster.KubeAPIServer)
		all[reference] = append(all[reference], "--requestheader-allowed-names="+pki.TierPrefix+string(cluster.Aggregator))
	}
	reference := cluster.Run(t, cluster.Config{Topology: cluster.KubeAPIServer, Flags: all})
	first := dial(t, reference)
	w := &twins{content: fill(t, reference, first)}
	w.compacted = w.content.early
	// A watch cache that does not know that a revision was compacted is recreated when its
	// connection breaks, and then has no history. A consistent list updates it.
	peer, err := parity.NewPeer("kube-apiserver", reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.CloseIdle)
	for _, r := range w.content.resources {
		if _, err := peer.Send(t.Context(), get(r.path("")+"?limit=1", ""), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := first.Compact(t.Context(), w.compacted, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "etcd")
	if err := reference.CopyEtcd(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	tested := cluster.Run(t, cluster.Config{
		Topology: cluster.Topology(*target), Replicas: *replicas, ExternalEtcd: true,
		EtcdData: data, PKI: reference.PKI, Flags: all,
	})
	w.filled = w.content.late
	other, err := parity.NewPeer("tested "+*target, tested)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.CloseIdle)
	w.both = [2]twin{{peer, first}, {other, dial(t, tested)}}
	return w
}

func dial(t *testing.T, c *cluster.Cluster) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.EtcdURL}, DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// padding is a key that nothing uses.
const padding = "/twins/padding"

// level brings both etcds to the same revision.
func (w *twins) level(ctx context.Context) (int64, error) {
	for {
		var at [2]int64
		for i, b := range w.both {
			resp, err := b.etcd.Get(ctx, padding)
			if err != nil {
				return 0, err
			}
			at[i] = resp.Header.Revision
		}
		if at[0] == at[1] {
			return at[0], nil
		}
		behind := w.both[0]
		if at[1] < at[0] {
			behind = w.both[1]
		}
		for range max(at[0], at[1]) - min(at[0], at[1]) {
			if _, err := behind.etcd.Put(ctx, padding, ""); err != nil {
				return 0, err
			}
		}
	}
}

// answer has the parts of an answer that are compared.
type answer struct {
	Code   int
	Header map[string][]string
	Body   []byte
	Err    string
}

// moments are headers that differ between any two answers of one server.
var moments = []string{"Audit-Id", "Date", "Content-Length", "Transfer-Encoding"}

// ask sends a request to both servers concurrently.
func (w *twins) ask(ctx context.Context, r parity.Request) (answers [2]answer, err error) {
	var group errgroup.Group
	for i, b := range w.both {
		group.Go(func() error {
			a, err := b.Send(ctx, r, nil)
			if err != nil {
				return err
			}
			answers[i], err = plain(a)
			return err
		})
	}
	return answers, group.Wait()
}

func plain(a *parity.Answer) (answer, error) {
	out := answer{Code: a.Code, Header: map[string][]string{}, Body: a.Body}
	for name, values := range a.Header {
		if !slices.Contains(moments, name) {
			out.Header[name] = values
		}
	}
	if a.Header.Get("Content-Encoding") == "gzip" {
		r, err := gzip.NewReader(bytes.NewReader(a.Body))
		if err != nil {
			return out, fmt.Errorf("unzip: %w", err)
		}
		if out.Body, err = io.ReadAll(r); err != nil {
			return out, fmt.Errorf("unzip: %w", err)
		}
	}
	if strings.HasPrefix(a.Header.Get("Content-Type"), "application/cbor") && len(out.Body) > 0 {
		return out, ordered(&out.Body)
	}
	return out, nil
}

// ordered turns CBOR into JSON with sorted keys: Kubernetes' encoder writes maps in random
// order.
func ordered(data *[]byte) error {
	var value any
	if err := direct.Unmarshal(*data, &value); err != nil {
		return fmt.Errorf("read cbor: %w", err)
	}
	var err error
	if *data, err = json.Marshal(value); err != nil {
		return fmt.Errorf("read cbor: %w", err)
	}
	return nil
}

// attempts is how often a comparison is tried that may coincide with a server's own write,
// or with the end of a second of an age: that affects every other answer that takes three
// seconds.
const attempts = 12

// same sends a request to both servers and expects equal answers. It returns the first one.
func (w *twins) same(t *testing.T, r parity.Request) answer {
	t.Helper()
	return w.sameAfter(t, r, func() error { return nil })
}

// sameNow is same for answers that contain the newest revision.
func (w *twins) sameNow(t *testing.T, r parity.Request) answer {
	t.Helper()
	return w.sameAfter(t, r, func() error {
		_, err := w.level(t.Context())
		return err
	})
}

func (w *twins) sameAfter(t *testing.T, r parity.Request, prepare func() error) answer {
	t.Helper()
	for i := 1; ; i++ {
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		answers, err := w.ask(t.Context(), r)
		if err != nil {
			t.Errorf("%s: %v", r.Do, err)
			return answers[0]
		}
		if equal(answers[0], answers[1]) {
			return answers[0]
		}
		if i == attempts {
			t.Errorf("%s %v (-kube-apiserver +tested):\n%s", cut(r.Do, 300), r.Headers, difference(answers[0], answers[1]))
			return answers[0]
		}
	}
}

func equal(a, b answer) bool {
	return a.Code == b.Code && bytes.Equal(a.Body, b.Body) && cmp.Equal(a.Header, b.Header)
}

// difference describes the first difference of two answers.
func difference(a, b answer) string {
	if a.Code != b.Code || !cmp.Equal(a.Header, b.Header) {
		return cmp.Diff([]any{a.Code, a.Header, cut(string(a.Body), 400)}, []any{b.Code, b.Header, cut(string(b.Body), 400)})
	}
	at := 0
	for at < len(a.Body) && at < len(b.Body) && a.Body[at] == b.Body[at] {
		at++
	}
	around := func(body []byte) string { return fmt.Sprintf("%q", body[max(0, at-120):min(len(body), at+200)]) }
	return fmt.Sprintf("%d and %d bytes, from byte %d on:\n- %s\n+ %s", len(a.Body), len(b.Body), at, around(a.Body), around(b.Body))
}

func cut(s string, n int) string { return s[:min(n, len(s))] }

// get returns a GET in an encoding.
func get(path, accept string) parity.Request {
	r := parity.Request{Do: http.MethodGet + " " + path}
	if accept != "" {
		r.Headers = map[string]string{"Accept": accept}
	}
	return r
}

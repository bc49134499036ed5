package eventlog

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// variant says how to run a hard case: with the real log, or with a naive part, whose bug the
// case must find.
type variant struct {
	name   string
	reader func(*Reader)
	relay  func(*Relay)
	fails  bool
}

var (
	asItIs       = variant{name: "as it is"}
	dedupe       = variant{name: "de-duplication by revision", reader: naiveRevision, fails: true}
	gapBySeq     = variant{name: "gap detection by sequence", reader: naiveSequence, fails: true}
	fenceBySeq   = variant{name: "fence by sequence", relay: sequenceFence, fails: true}
	patientLimit = 4 * time.Second // limit for a naive variant
	naiveTries   = 5
)

// hardCase runs a scenario for each variant, on servers of its own. The scenario returns what
// is wrong, or the empty string.
func hardCase(t *testing.T, scenario func(t *testing.T, b *bench, v variant) string, variants ...variant) {
	t.Parallel()
	if testing.Short() && len(variants) > 1 {
		variants = variants[:1]
	}
	for _, v := range append([]variant{asItIs}, variants...) {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			try(t, scenario, newBench, v)
		})
	}
}

// try runs a scenario for one variant.
func try(t *testing.T, scenario func(t *testing.T, b *bench, v variant) string, servers func(testing.TB) *bench, v variant) {
	t.Helper()
	wrong := scenario(t, servers(t), v)
	// A naive variant may be lucky, especially on a busy machine, so it gets several tries. The
	// real log gets one.
	for tries := 1; v.fails && wrong == "" && tries < naiveTries; tries++ {
		wrong = scenario(t, servers(t), v)
	}
	switch {
	case v.fails && wrong == "":
		t.Error("the naive variant passes, so this test proves nothing")
	case !v.fails && wrong != "":
		t.Error(wrong)
	}
}

// outcome compares the sink with etcd's history once the sink has reached a revision.
func (b *bench) outcome(t *testing.T, w *witness, sink *recorder, v variant, revision int64) string {
	t.Helper()
	within := hang
	if v.fails {
		within = patientLimit
	}
	if !sink.reaches(revision, within) {
		return fmt.Sprintf("not at revision %d in %s", revision, within)
	}
	return w.diff(t, sink, b.routes, Core, revision)
}

// checkStream verifies the chain of the whole stream and returns what is wrong.
func (b *bench) checkStream(t *testing.T) string {
	t.Helper()
	js, err := jetstream.New(b.connectNATS(t))
	if err != nil {
		t.Fatal(err)
	}
	p := storedStream{js: js, name: b.routes.Stream(Core)}
	// A cluster may be about to elect another leader.
	for deadline := time.Now().Add(hang); ; time.Sleep(100 * time.Millisecond) {
		var v verifier
		err = p.each(t.Context(), 1, "", func(m *message) (bool, error) {
			_, err := v.accept(m)
			return true, err
		})
		switch {
		case err == nil:
			return ""
		case errors.Is(err, errBroken), time.Now().After(deadline):
			return err.Error()
		}
	}
}

// endsIntact writes a last key and checks that the reader has missed nothing, is on the stream
// again, and that the chain in the stream is whole.
func (b *bench) endsIntact(t *testing.T, w *witness, r *Reader, sink *recorder) {
	t.Helper()
	if wrong := b.outcome(t, w, sink, asItIs, b.put(t, "pods/ns/last", "x")); wrong != "" {
		t.Fatal(wrong)
	}
	waitSource(t, r, sink, SourceStream)
	if wrong := b.checkStream(t); wrong != "" {
		t.Error(wrong)
	}
}

// many writes n keys with one lease and returns the lease.
func (b *bench) many(t *testing.T, n int, ttl int64) clientv3.LeaseID {
	t.Helper()
	lease, err := b.etcd.Grant(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := b.etcd.Put(t.Context(), fmt.Sprintf("/registry/events/ns/e%04d", i), "x", clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
	}
	return lease.ID
}

// A modification of the largest object carries it twice.
func TestTheLargestObject(t *testing.T) {
	hardCase(t, largest, dedupe)
}

func largest(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	big := make([]byte, DefaultRequestLimit-256)
	for i := range 3 {
		big[0] = byte(i)
		if _, err := b.etcd.Put(t.Context(), "/registry/secrets/ns/big", string(big)); err != nil {
			t.Fatal(err)
		}
	}
	b.put(t, "secrets/ns/small", "x")
	if _, err := b.etcd.Delete(t.Context(), "/registry/secrets/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, v, last); wrong != "" {
		return wrong
	}
	// On a busy machine the stream may have been silent for longer than the readers' patience.
	// Their return shows that the stream has carried everything.
	waitSource(t, r, sink, SourceStream)
	if s := r.Status(); s.Gaps != 0 || s.Refused != 0 {
		return fmt.Sprintf("status %+v", s)
	}
	return b.checkStream(t)
}

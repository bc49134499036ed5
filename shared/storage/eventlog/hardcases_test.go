package eventlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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

// A lease of a thousand keys expires at one revision. The relay is killed in the middle of
// publishing it.
func TestLeaseOfAThousandKeysExpiresWhileTheRelayIsKilled(t *testing.T) {
	hardCase(t, leaseExpires, dedupe)
}

func leaseExpires(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	ctx, kill := context.WithCancel(t.Context())
	dead := make(chan struct{})
	var deletions atomic.Int64
	first := b.relay(t, "first", func(r *Relay) {
		r.hooks.killed = true
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent && m.Event.Value == nil && deletions.Add(1) == 400 {
				kill()
				<-dead
			}
		}
	})
	var ended sync.WaitGroup
	ended.Go(func() { _ = first.Run(ctx) })
	t.Cleanup(func() { kill(); close(dead); ended.Wait() })
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	lease := b.many(t, 1000, 3600)
	if v.fails {
		// The naive reader must not fail for another reason.
		sink.until(t, b.put(t, "pods/ns/before", "x"))
	}
	if _, err := b.etcd.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	b.runRelay(t, "second", nil)
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, v, last); wrong != "" {
		return wrong
	}
	return b.checkStream(t)
}

// The acknowledgement of a stored message is lost.
func TestAnAckIsLostAfterTheAppend(t *testing.T) {
	hardCase(t, ackLost, dedupe, variant{name: "resending what was not acknowledged", relay: unfenced, fails: true})
}

func unfenced(r *Relay) {
	r.hooks.limits = &pipelined
	r.hooks.fence = func(*feed, *message) nats.Header { return nats.Header{} }
}

func ackLost(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	js, err := jetstream.New(b.connectNATS(t))
	if err != nil {
		t.Fatal(err)
	}
	var answers atomic.Int64
	var lost atomic.Pointer[message]
	resent := make(chan error, 1)
	b.runRelay(t, "a", func(r *Relay) {
		if v.relay != nil {
			v.relay(r)
		}
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent {
				copied := *m
				lost.CompareAndSwap(nil, &copied)
			}
		}
		r.hooks.acknowledge = func(*nats.Msg) bool {
			if answers.Add(1) != 60 {
				return false
			}
			if v.relay != nil {
				// A naive client retries.
				time.AfterFunc(200*time.Millisecond, func() {
					m := lost.Load()
					_, err := js.Publish(context.Background(), b.routes.Route(m.Event.Key).Subject, appendMessage(nil, m))
					resent <- err
				})
			}
			return true
		}
	})
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	b.many(t, 100, 3600)
	if _, err := b.etcd.Delete(t.Context(), "/registry/events/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if v.relay != nil {
		if err := <-resent; err != nil {
			t.Fatal(err)
		}
	}
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, v, last); wrong != "" {
		return wrong
	}
	eventually(t, "an acknowledgement is lost", func() bool { return answers.Load() >= 60 })
	return b.checkStream(t)
}

// The relay is paused with messages in flight and loses its lease. A successor is elected and
// publishes, and then the messages arrive.
func TestAPausedRelayResumesAfterASuccessorWasElected(t *testing.T) {
	hardCase(t, pausedRelay, fenceBySeq, dedupe)
}

func pausedRelay(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	b.ackTimeout = 10 * time.Second
	toNATS, toEtcd := newProxy(t, b.nats.Addr().String()), newProxy(t, strings.TrimPrefix(b.server.URL(), "http://"))
	conn, err := nats.Connect("nats://"+toNATS.addr(), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.IgnoreDiscoveredServers())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + toEtcd.addr()}, Logger: nopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	var sent atomic.Int64
	background(t, b.relayBy(t, "paused", etcd, conn, func(r *Relay) {
		if v.relay != nil {
			v.relay(r)
		}
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent {
				sent.Add(1)
			}
		}
	}).Run)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/before", "x"))
	before := sent.Load()

	toNATS.freeze()
	for i := range 50 {
		b.put(t, fmt.Sprintf("pods/ns/p%d", i), "x")
	}
	// A pipeline takes them all. Only one batch is in flight at a time, and it may be progress.
	underWay := int64(50)
	if b.stream.Replicas > 1 && v.relay == nil {
		underWay = 0
	}
	eventually(t, "the paused relay has sent what it can", func() bool { return sent.Load() >= before+underWay })
	toEtcd.freeze()
	// The successor is in the middle of the same events when the old messages arrive.
	halfway, goOn := make(chan struct{}), make(chan struct{})
	stored := b.messages(t)
	var published atomic.Int64
	b.runRelay(t, "successor", func(r *Relay) {
		if v.relay != nil {
			v.relay(r)
		}
		r.hooks.publish = func(m *message) {
			if m.Type == typeEvent && published.Add(1) == 20 {
				close(halfway)
				<-goOn
			}
		}
	})
	<-halfway
	if underWay > 0 {
		eventually(t, "half of the events are stored", func() bool { return b.messages(t) >= stored+19 })
	}
	toNATS.thaw()
	toEtcd.thaw()
	// They have arrived when the paused relay gets its replies and starts again.
	time.Sleep(300 * time.Millisecond)
	close(goOn)
	if _, err := b.etcd.Delete(t.Context(), "/registry/pods/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.checkStream(t); wrong != "" {
		return wrong
	}
	return b.outcome(t, w, sink, v, last)
}

// Messages are purged before a reader gets them.
func TestTheStreamIsPurged(t *testing.T) {
	hardCase(t, purged, gapBySeq, dedupe)
}

func purged(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	b.runRelay(t, "a", nil)
	direct, directSink := b.read(t, nil)
	waitSource(t, direct, directSink, SourceStream)
	p := newProxy(t, b.nats.Addr().String())
	conn, err := nats.Connect("nats://"+p.addr(), nats.MaxReconnects(-1), nats.IgnoreDiscoveredServers())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	r, sink := b.readBy(t, conn, func(r *Reader) {
		r.hooks.maxPending = 10
		r.cfg.Patience = time.Minute // only the chain may find it
		if v.reader != nil {
			v.reader(r)
		}
	})
	waitSource(t, r, sink, SourceStream)
	p.freeze()
	for i := range 50 {
		b.put(t, fmt.Sprintf("pods/ns/p%d", i), "x")
	}
	directSink.until(t, b.put(t, "pods/ns/there", "x"))
	stream, err := direct.js.Stream(t.Context(), direct.stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.thaw()
	last := b.put(t, "pods/ns/last", "x")
	return b.outcome(t, w, sink, v, last)
}

// The server loses all its files.
func TestTheFilesOfTheStreamAreDeleted(t *testing.T) {
	hardCase(t, filesDeleted, gapBySeq, dedupe)
}

func filesDeleted(t *testing.T, b *bench, v variant) string {
	return b.lossOfFiles(t, v, func() func(dir string) {
		return func(dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The server dies before acknowledged messages are on disk. It starts again with its earlier
// files.
func TestTheServerIsKilledBeforeTheFlush(t *testing.T) {
	hardCase(t, killedBeforeFlush, gapBySeq, dedupe)
}

func killedBeforeFlush(t *testing.T, b *bench, v variant) string {
	return b.lossOfFiles(t, v, func() func(dir string) {
		saved := map[string]string{}
		for _, s := range b.servers() {
			dir := filepath.Join(s.opts.StoreDir, "jetstream")
			saved[dir] = t.TempDir()
			if err := os.CopyFS(saved[dir], os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
		}
		return func(dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(dir, os.DirFS(saved[dir])); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// lossOfFiles restarts the server with other files. It calls save some time before that.
func (b *bench) lossOfFiles(t *testing.T, v variant, save func() func(dir string)) string {
	w := newWitness(t, b.etcd, b.routes)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	for i := range 30 {
		b.put(t, fmt.Sprintf("pods/ns/a%d", i), "x")
	}
	sink.until(t, b.put(t, "pods/ns/saved", "x"))
	lose := save()
	for i := range 30 {
		b.put(t, fmt.Sprintf("pods/ns/b%d", i), "x")
	}
	sink.until(t, b.put(t, "pods/ns/lost", "x"))
	// Progress messages are lost, too: otherwise the events that are published again might get
	// their old sequences, and counting would suffice.
	quiet := b.messages(t)
	eventually(t, "progress is published", func() bool { return b.messages(t) >= quiet+5 })
	b.restartNATS(t, func(dir string) {
		lose(dir)
		for i := range 10 {
			b.put(t, fmt.Sprintf("pods/ns/c%d", i), "x")
		}
	})
	for i := range 100 {
		b.put(t, fmt.Sprintf("pods/ns/d%d", i), "x")
	}
	if _, err := b.etcd.Delete(t.Context(), "/registry/pods/ns/b", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	last := b.put(t, "pods/ns/last", "x")
	if wrong := b.outcome(t, w, sink, v, last); wrong != "" {
		return wrong
	}
	waitSource(t, r, sink, SourceStream)
	after := b.put(t, "pods/ns/after", "x")
	return b.outcome(t, w, sink, v, after)
}

// etcd compacts events that no relay has published.
func TestEtcdIsCompactedPastTheStream(t *testing.T) {
	hardCase(t, compactedPast, gapBySeq, dedupe)
}

func compactedPast(t *testing.T, b *bench, v variant) string {
	w := newWitness(t, b.etcd, b.routes)
	stop := b.runRelay(t, "a", nil)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	first := b.put(t, "pods/ns/a", "1")
	sink.until(t, first)
	stop()
	b.put(t, "pods/ns/a", "2")
	end := b.put(t, "pods/ns/a", "3")
	if !v.fails {
		sink.until(t, end) // from etcd
	}
	b.put(t, "pods/ns/a", "4")
	end = b.put(t, "pods/ns/a", "5")
	if !v.fails {
		sink.until(t, end)
	}
	w.until(t, end)
	if _, err := b.etcd.Compact(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	b.runRelay(t, "b", nil)
	last := b.put(t, "pods/ns/a", "6")
	if wrong := b.outcome(t, w, sink, v, last); wrong != "" {
		return wrong
	}
	waitSource(t, r, sink, SourceStream)
	last = b.put(t, "pods/ns/a", "7")
	sink.until(t, last)
	if got, err := since(t, r, "/registry/pods/", first-1, last); err == nil {
		return fmt.Sprintf("history over the gap: %v", got)
	}
	if got, err := since(t, r, "/registry/pods/", end, last); err != nil || len(got) != 2 {
		return fmt.Sprintf("history after the gap: %v, %v", got, err)
	}
	return b.outcome(t, w, sink, v, last)
}

// etcd is restored from a backup, and other changes get revisions that the stream has already
// told.
func TestEtcdIsRestoredFromABackup(t *testing.T) {
	hardCase(t, restored, gapBySeq, dedupe)
}

// Before anyone notices, the restored etcd has as many revisions as the old one.
func TestEtcdIsRestoredFromABackupAndOvertakesTheStream(t *testing.T) {
	hardCase(t, func(t *testing.T, b *bench, v variant) string { return b.restored(t, v, 100) })
}

func restored(t *testing.T, b *bench, v variant) string { return b.restored(t, v, 0) }

func (b *bench) restored(t *testing.T, v variant, atOnce int) string {
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, v.reader)
	waitSource(t, r, sink, SourceStream)
	for i := range 20 {
		b.put(t, fmt.Sprintf("pods/ns/a%d", i), "x")
	}
	backup := t.TempDir()
	b.server.Stop()
	if err := os.CopyFS(backup, os.DirFS(b.server.Dir())); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	for i := range 40 {
		b.put(t, fmt.Sprintf("pods/ns/b%d", i), "gone")
	}
	gone := b.put(t, "pods/ns/gone", "gone")
	sink.until(t, gone)
	incarnation := b.incarnation(t)
	// If the relay is behind the reader, the backup may have the whole stream, which then
	// continues.
	ahead := r.Status().Source == SourceStream
	b.server.Stop()
	if err := os.RemoveAll(b.server.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(b.server.Dir(), os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	for i := range atOnce {
		b.put(t, fmt.Sprintf("pods/ns/once%d", i), "other")
	}
	w := newWitness(t, b.etcd, b.routes)
	var last int64
	within := time.Now().Add(hang)
	if v.fails {
		within = time.Now().Add(patientLimit)
	}
	for i := 0; ; i++ {
		last = b.put(t, fmt.Sprintf("pods/ns/c%d", i), "back")
		sink.mu.Lock()
		resets := len(sink.resets)
		sink.mu.Unlock()
		if resets > 1 {
			break
		}
		if time.Now().After(within) {
			return fmt.Sprintf("no reset: %+v", r.Status())
		}
		time.Sleep(20 * time.Millisecond)
	}
	eventually(t, "the stream is the source again", func() bool {
		last = b.put(t, "pods/ns/again", "back")
		return r.Status().Source == SourceStream
	})
	for i := range 20 {
		last = b.put(t, fmt.Sprintf("pods/ns/d%d", i), "back")
	}
	if !sink.reaches(last, hang) {
		return "not there"
	}
	if ahead && b.incarnation(t) == incarnation {
		return "the incarnation is the old one"
	}
	// Only the events after the reset count.
	sink.mu.Lock()
	if len(sink.resets) != 2 {
		sink.mu.Unlock()
		return fmt.Sprintf("resets at %v", sink.resets)
	}
	reset := sink.resets[1]
	for i, e := range sink.events {
		if string(e.Value) == "back" {
			sink.events = sink.events[i:]
			break
		}
	}
	sink.resets = []int64{reset}
	sink.faults = nil
	sink.mu.Unlock()
	return w.diff(t, sink, b.routes, Core, last)
}

// messages returns the last sequence of core's stream.
func (b *bench) messages(t *testing.T) uint64 {
	t.Helper()
	end, err := readTail(t.Context(), b.coreStream(t))
	if err != nil {
		t.Fatal(err)
	}
	return end.sequence
}

func (b *bench) coreStream(t *testing.T) jetstream.Stream {
	t.Helper()
	conn := b.connectNATS(t)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), b.routes.Stream(Core))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (b *bench) incarnation(t *testing.T) uint64 {
	t.Helper()
	var end tail
	// Progress replaces the previous one, which may have been the last message.
	eventually(t, "the stream has an end", func() bool {
		var err error
		if end, err = readTail(t.Context(), b.coreStream(t)); err != nil {
			t.Fatalf("tail: %v", err)
		}
		return end.last != nil
	})
	return end.last.Incarnation
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

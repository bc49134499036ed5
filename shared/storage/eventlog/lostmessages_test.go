package eventlog

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"
)

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

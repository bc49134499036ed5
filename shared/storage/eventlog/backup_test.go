package eventlog

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// etcd is restored from a backup, and other changes get the revisions of events that the stream
// has already.
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

// etcd is restored from a backup that is newer than the last event of a tier, and has as many
// revisions as before when the relay looks.
func TestEtcdIsRestoredUnderAQuietTier(t *testing.T) {
	b := newBench(t)
	b.runRelay(t, "a", nil)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/quiet", "x"))
	backup := t.TempDir()
	b.server.Stop()
	if err := os.CopyFS(backup, os.DirFS(b.server.Dir())); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	waitSource(t, r, sink, SourceStream)
	// The revisions that the backup lacks belong to other tiers.
	for i := range 40 {
		key := fmt.Sprintf("/elsewhere/%d", i)
		if _, err := b.etcd.Put(t.Context(), key, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	now, err := currentPosition(t.Context(), b.etcd, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RequestProgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	sink.until(t, now.revision)
	b.server.Stop()
	if err := os.RemoveAll(b.server.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(b.server.Dir(), os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	var last int64
	for i := range 100 {
		last = b.put(t, fmt.Sprintf("pods/ns/once%02d", i), "restored")
	}
	if last <= now.revision {
		t.Fatalf("revision %d does not pass %d", last, now.revision)
	}
	sink.wait(t, "a reset", func() bool { return len(sink.resets) > 1 })
	eventually(t, "the stream is the source again", func() bool {
		last = b.put(t, "pods/ns/again", "restored")
		return r.Status().Source == SourceStream
	})
	sink.until(t, last)
}

// A reader is ahead of the stream when it loses etcd. etcd is restored from a backup that has
// the whole stream, so the stream continues and passes the reader's revision. The reader must
// not take it for the history that it has seen.
func TestEtcdIsRestoredUnderAReaderThatIsCutOff(t *testing.T) {
	b := newBench(t)
	stop := b.runRelay(t, "before", nil)
	etcd, toEtcd := b.etcdThrough(t)
	r, err := NewReader(ReaderConfig{Etcd: etcd, Conn: b.connectNATS(t), Routes: b.routes, Tier: Core, Patience: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	sink := newRecorder()
	background(t, func(ctx context.Context) error { return r.Run(ctx, sink) })
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/before", "x"))
	stop()
	backup := t.TempDir()
	b.server.Stop()
	if err := os.CopyFS(backup, os.DirFS(b.server.Dir())); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	var gone int64
	for i := range 40 {
		gone = b.put(t, fmt.Sprintf("pods/ns/p%d", i), "gone")
	}
	sink.until(t, gone)

	toEtcd.cut()
	b.server.Stop()
	removeAll(t, b.server.Dir())
	if err := os.CopyFS(b.server.Dir(), os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	b.server.Restart(t)
	b.runRelay(t, "after", nil)
	eventually(t, "the stream passes what the reader knows", func() bool {
		b.put(t, "pods/ns/p", "restored")
		end, err := readTail(t.Context(), b.coreStream(t))
		return err == nil && end.last != nil && end.last.ID.Revision > gone+10
	})
	toEtcd.mend()
	sink.wait(t, "a reset", func() bool { return len(sink.resets) > 1 })
	eventually(t, "the stream is the source again", func() bool {
		last := b.put(t, "pods/ns/again", "restored")
		return sink.reaches(last, time.Second) && r.Status().Source == SourceStream
	})
}

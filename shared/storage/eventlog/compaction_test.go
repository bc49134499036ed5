package eventlog

import (
	"fmt"
	"testing"
)

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

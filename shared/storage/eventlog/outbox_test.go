package eventlog

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Batches hold complete revisions if a limit allows it; barriers and progress end them.
func TestBatchesHoldCompleteRevisions(t *testing.T) {
	events := func(revision int64, n, size int) (out []outgoing) {
		for i := range n {
			out = append(out, outgoing{size: size, message: message{Type: typeEvent, ID: ID{1, revision, uint32(i)}, Last: i == n-1}})
		}
		return out
	}
	progress := outgoing{size: 10, message: message{Type: typeProgress}}
	barrier := outgoing{size: 10, message: message{Type: typeProgress}, barrier: true}
	join := func(parts ...[]outgoing) (out []outgoing) {
		for _, part := range parts {
			out = append(out, part...)
		}
		return out
	}
	for _, tc := range []struct {
		name   string
		limits limits
		queue  []outgoing
		want   []int // message counts of the units
	}{
		{"a pipeline takes messages one by one", pipelined, events(1, 3, 10), []int{1, 1, 1}},
		{"a batch takes what there is", batched, join(events(1, 3, 10), events(2, 1, 10), events(3, 5, 10)), []int{9}},
		{"it ends with a revision", batched, join(events(1, 700, 10), events(2, 700, 10)), []int{700, 700}},
		{"a revision may be too much for one", batched, join(events(1, 10, 10), events(2, 2500, 10), events(3, 1, 10)), []int{10, 1000, 1000, 501}},
		{"bytes bound it", batched, join(events(1, 1, batchBytes-1), events(2, 1, 2), events(3, 1, 2)), []int{1, 2}},
		{"a message that is too large goes by itself", batched, join(events(1, 1, 2*batchBytes), events(2, 1, 2)), []int{1, 1}},
		{"it ends with progress", batched, join(events(1, 2, 10), []outgoing{progress, progress}, events(2, 1, 10)), []int{3, 1, 1}},
		{"a barrier stands alone", batched, join(events(1, 2, 10), []outgoing{barrier}, events(2, 1, 10)), []int{2, 1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := outbox{limits: tc.limits}
			for _, m := range tc.queue {
				o.push(m)
			}
			var got []int
			for !o.empty() {
				got = append(got, len(o.next(0, 0)))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("units (-want +got):\n%s", diff)
			}
			if o.bytes != 0 {
				t.Errorf("%d bytes are left of nothing", o.bytes)
			}
		})
	}
}

// Messages in flight hold up the messages that must wait for them.
func TestOutboxWaitsForAcknowledgements(t *testing.T) {
	m := outgoing{size: 10, message: message{Type: typeEvent, Last: true}}
	barrier := m
	barrier.barrier = true
	for _, tc := range []struct {
		name         string
		limits       limits
		m            outgoing
		units, bytes int
		waits        bool
	}{
		{"one batch at a time", batched, m, 1, 10, true},
		{"a pipeline goes on", pipelined, m, 1023, 10, false},
		{"until it is full", pipelined, m, 1024, 10, true},
		{"or too many bytes are under way", pipelined, m, 3, pendingBytes, true},
		{"a barrier waits for a pipeline", pipelined, barrier, 1, 10, true},
	} {
		o := outbox{limits: tc.limits}
		o.push(tc.m)
		if got := o.next(tc.units, tc.bytes) == nil; got != tc.waits {
			t.Errorf("%s: waits %t", tc.name, got)
		}
	}
}

// An outbox that is never empty does not grow.
func TestOutboxDoesNotGrow(t *testing.T) {
	o := outbox{limits: pipelined}
	m := outgoing{size: 10, message: message{Type: typeEvent, Last: true}}
	for i := range 100_000 {
		m.ID.Revision = int64(i)
		if o.push(m); i < 100 {
			continue
		}
		if got := o.next(0, 0); len(got) != 1 || got[0].ID.Revision != int64(i-100) {
			t.Fatalf("%d: %v", i, got)
		}
	}
	if cap(o.queue) > 10_000 {
		t.Errorf("room for %d messages, of which 100 wait", cap(o.queue))
	}
}

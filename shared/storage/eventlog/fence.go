package eventlog

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// fence returns the headers of a message that is published on its own.
//
// Every message names the sequence that must precede it. In a pipeline that is not enough:
// after one message is refused because a successor has published, a later message may fit the
// sequence that the successor's message has produced. So a pipelined message also names the
// last message on the fence subject, where each relay publishes first. A relay learns that
// sequence from the acknowledgement and never guesses it, so it cannot name its successor's.
func (f *feed) fence() nats.Header {
	h := nats.Header{
		jetstream.ExpectedStreamHeader:  {f.name},
		jetstream.ExpectedLastSeqHeader: {strconv.FormatUint(f.sequence, 10)},
	}
	if f.token != 0 && f.limits == pipelined {
		h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(f.token, 10)}
		h[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{f.name + fenceSubject}
	}
	return h
}

// Headers of an atomic batch.
const (
	batchIDHeader       = "Nats-Batch-Id"
	batchSequenceHeader = "Nats-Batch-Sequence"
	batchCommitHeader   = "Nats-Batch-Commit"
)

// batchHeader returns the headers of the i-th of n messages of an atomic batch that follows the
// sequence after. The server checks the expected sequence when the batch is complete, before it
// proposes any of it.
func (f *feed) batchHeader(after uint64, i, n int) nats.Header {
	h := nats.Header{
		// A tier that can create consumers can have messages of its stream delivered to another
		// stream, headers included; so each message names the stream it is meant for.
		jetstream.ExpectedStreamHeader: {f.name},
		batchIDHeader:                  {strconv.FormatUint(f.epoch, 36) + "-" + strconv.FormatUint(after, 36)},
		batchSequenceHeader:            {strconv.Itoa(i + 1)},
	}
	if i == 0 {
		h[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(after, 10)}
	}
	if i == n-1 {
		h[batchCommitHeader] = []string{"1"}
	}
	return h
}

// fenceShare bounds the age of the fence of a pipeline, and the bytes published behind it, to a
// fraction of what the stream stores: the fence must not be discarded.
const fenceShare = 4

// renewFence queues another fence before the stream discards the last one. The last queued
// revision must be complete.
func (t *term) renewFence(f *feed) {
	old := f.maxAge > 0 && time.Since(f.fencedAt) >= f.maxAge/fenceShare
	deep := f.maxBytes > 0 && f.bytesSinceFence >= f.maxBytes/fenceShare
	if f.limits == pipelined && (old || deep) {
		f.enqueue(f.sequencer.progress(f.complete, t.anchor), f.name+fenceSubject, true)
	}
}

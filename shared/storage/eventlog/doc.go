// Package eventlog distributes the changes of an etcd, so that one watch of etcd feeds any
// number of readers.
//
// # Path of an event
//
// Read the package in this order:
//
//  1. [Routes] maps each key to a tier, a stream and a subject (routes.go, ranges.go), and derives
//     the [Permissions] of NATS users from them.
//  2. An elected [Relay] (relay.go, election.go) serves terms (term.go): it watches etcd and
//     opens one stream per tier (open.go, stream.go, tail.go, errors.go).
//  3. Within a term each stream has a feed (feed.go, publish.go). Its sequencer numbers and links
//     the events (id.go, sequencer.go), its outbox queues them (outbox.go), and its publisher
//     sends the encoded messages (message.go) to JetStream (publisher.go), behind a fence
//     (fence.go). A feed that fails is opened again (outage.go).
//  4. A [Reader] (reader.go, readloop.go) has a subscription to its stream (subscription.go) and
//     a verifier of the chain (verifier.go, readstream.go). While the stream is unusable, it
//     watches etcd (readetcd.go). It passes complete revisions to a [Sink].
//  5. [Reader.Since] reads the past (history.go, scan.go, storedstream.go, coverage.go).
//
// Records and anchors in etcd tie a stream to its history (record.go, anchor.go).
// [Connect] connects both sides to NATS (connect.go). Each of them reports its status
// (relaystatus.go, streamhealth.go, readerstatus.go) and metrics (metrics.go).
//
// Relay and Reader each have one Run, which must be called once. Their other methods, and those
// of Routes, are safe for concurrent use.
//
// # Relay
//
// One elected relay watches all keys below a prefix. It publishes each change to JetStream, to
// one stream per tier and one subject per resource. It is the only publisher. The elected relay
// owns a key with its lease; candidates poll the key instead of watching it, so that etcd has one
// watch only.
//
// # Messages
//
// An event is identified by an [ID]: the epoch of the relay that published it, its etcd revision,
// and its index within the revision. The index is needed because an expiring lease deletes any
// number of keys at one revision. The last event of a revision is marked; readers use complete
// revisions only. There are two other types of message. Progress says that everything up to a
// revision precedes it. A reset says that the changes up to a revision are lost; history never
// spans a reset.
//
// Every message names the event or reset before it in the stream, and an event also names the
// event before it on its subject. Readers verify this chain. They never rely on JetStream's
// sequences: a purged or recreated stream starts to count again, and an acknowledged message may
// be lost with a file that was not flushed.
//
// # Fencing
//
// The relay publishes on the condition that the stream has a certain last sequence. A stream with
// several replicas gets atomic batches, one at a time. The first message of a batch names the
// sequence, and the leader checks it before it proposes anything. A stream with one replica gets
// a pipeline of messages, each of which names the sequence that the message before it will get.
// That alone is not enough: after one message is refused, a later one may fit the sequence that a
// successor's message has produced. So pipelined messages also name the last message on a subject
// on which every relay publishes first, with nothing else in flight.
//
// After a failed or missing acknowledgement the relay reads the tail of that stream and continues
// after its last complete revision, under a new epoch. Nothing is ever sent twice under one ID.
// Streams are opened and closed independently. A stream that stays unusable while JetStream can
// create and delete streams is recreated.
//
// Nats-Expected-Stream names the stream. Otherwise a user who may create consumers on one stream
// could have its messages delivered to another, with their headers, whose sequences might fit.
//
// Every irreversible step follows a transaction on the key of the election. If that shows that
// another relay is elected, the relay stops.
//
// # Incarnation and history
//
// Each message carries the incarnation of its stream, a random number. etcd stores a record of
// the current incarnation and of the history of the stream. A recreated stream gets
// another incarnation: readers leave it, return to it, and lose nothing. A stream that is ahead
// of its etcd, or has an event or an anchor that its etcd does not have, follows a history that
// was replaced, for example by a restored backup. It is recreated with another history as well,
// and readers start again. A stream that is merely empty (purged, files lost) keeps both.
//
// # Reader
//
// A reader follows the stream of one tier. etcd is the source of truth and the fallback: at the
// start, when the chain is broken, and when the stream is silent for three seconds although etcd
// went on, the reader watches etcd itself from its last complete revision. Meanwhile it continues
// to verify the stream, and returns to it at a revision that both have reached. So a failure of
// NATS costs latency and no event, and a sink sees a reset only if etcd itself no longer has the
// history.
package eventlog

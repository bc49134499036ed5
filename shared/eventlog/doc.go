// Package eventlog carries the changes of an etcd to everybody who wants them, so
// that one watch of etcd feeds any number of readers.
//
// # Relay
//
// One elected [Relay] watches all keys below a prefix and publishes each change
// to JetStream, into one stream per tier, on one subject per resource. It is the
// only publisher. Candidates look now and then whether the key of the elected one,
// which has its lease, is there; nobody watches it, so that etcd has one watch only.
//
// # What a message is
//
// An event is identified by an [ID]: the epoch of the relay that published it,
// its etcd revision, and its index within the revision, because a lease that
// ends deletes a thousand keys at one revision. The last event of a revision is
// marked; readers believe complete revisions only. Two other messages
// exist. Progress says that everything up to a revision stands before it. A
// reset says that what happened up to a revision cannot be told any more, and
// history never spans it.
//
// Every message names the event (or reset) before it in the stream, and an event
// also the one before it on its subject. Readers verify this chain. They never
// use JetStream's sequences: a purged or recreated stream counts anew, and an
// acknowledged message may vanish with a file that was not flushed.
//
// # Fencing
//
// The relay publishes behind a sequence that the stream must have. A stream with
// several replicas gets atomic batches, one under way, of which the first message
// names it; the leader looks at it before it proposes anything. A stream with one
// replica gets a pipeline of messages, each of which names the sequence that the one
// before will have. That alone would not do: after one refusal, a later message may
// fit the number that a successor's message has brought about. So they also name the
// last message on a subject where every relay publishes before anything else, with
// nothing else under way.
//
// After a failed or missing acknowledgement the relay reads that stream's tail and
// goes on after its last complete revision, under a new epoch. Nothing is ever sent
// twice under one ID. Each stream is opened and closed by itself. One that cannot be
// published to for a while, although NATS decides about streams, is made anew.
//
// Nats-Expected-Stream names the stream. Who may make consumers on one stream can
// have its messages delivered into another one, with their headers, where their
// sequences may fit now and then.
//
// What cannot be undone follows a transaction on the key by which the relay is
// elected; one that finds that another is elected does nothing more.
//
// # Incarnation and history
//
// Messages also carry the incarnation of their stream, a random number. etcd has a
// record of the present one, and of the history that it tells. A stream that is made
// anew gets another incarnation: readers leave it and come back, and lose nothing. A
// stream that is ahead of its etcd, or that tells of an event or an anchor which its
// etcd does not have, follows a history that was replaced, by a restored backup for
// example: it is made anew with another history, too, and readers begin anew. A
// stream that is merely empty (purged, files lost) keeps both.
//
// # Reader
//
// A [Reader] follows the stream of one tier and hands complete revisions to a
// [Sink]. etcd is the truth and the way out: at the start, when the chain is
// broken, and when nothing came for three seconds although etcd went on, the
// reader watches etcd itself from its last complete revision. Meanwhile it keeps
// verifying the stream, and returns to it at a point where both have told the
// same. So everything that may happen to NATS costs latency and no event, and a
// sink sees a reset only where etcd itself has no history any more.
package eventlog

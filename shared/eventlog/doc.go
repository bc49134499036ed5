// Package eventlog carries the changes of an etcd to everybody who follows them,
// so that one watch of etcd feeds any number of followers.
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
// marked; whoever follows believes complete revisions only. Two other messages
// exist. Progress says that everything up to a revision stands before it. A
// reset says that what happened up to a revision cannot be told any more, and
// history never spans it.
//
// Every message names the event (or reset) before it in the stream, and an event
// also the one before it on its subject. Followers verify this chain. They never
// use JetStream's sequences: a purged or recreated stream counts anew, and an
// acknowledged message may vanish with a file that was not flushed.
//
// # Fencing
//
// The header Nats-Msg-Id is the incarnation and the ID, and
// Nats-Expected-Last-Msg-Id names the message before it, progress and resets
// included. JetStream refuses a message
// whose predecessor is not the last one, so after the first refusal nothing of
// the same pipeline gets in, whoever else publishes meanwhile. An expected
// sequence number would not do: after one refusal, a later message of the
// pipeline may fit the number that a successor's message has brought about. The
// first message in a stream without a predecessor is the exception: it travels
// alone, fenced by the sequence.
//
// After a failed or missing acknowledgement the relay stops, waits for the
// acknowledgements under way, reads the stream's tail and goes on after its last
// complete revision, under a new epoch. Nothing is ever sent twice under one ID,
// so JetStream's de-duplication has nothing to do.
//
// Nats-Expected-Stream names the stream. Who may make consumers on one stream can
// have its messages delivered into another one, with their headers; idle streams
// count the same revisions in step, and without these two such a message would
// fit now and then.
//
// # Incarnation
//
// Messages also carry the incarnation of their stream, a random number that
// stands for one history of etcd. A stream that is ahead of its etcd, or that
// tells of an event which its etcd does not have, follows a history that was
// replaced, by a restored backup for example: it is deleted and made anew, with
// another incarnation. A stream that is merely empty (purged, files lost) keeps
// it: followers that have seen the changes lose nothing.
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

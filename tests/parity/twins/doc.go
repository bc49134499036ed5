// Package twins sends the same reads to kube-apiserver and to Triune, each with a copy of
// the same etcd, and expects the same bytes: bodies, revisions, continue tokens, watch
// transcripts and errors, in every encoding.
//
// kube-apiserver fills an etcd with objects of every kind, custom resources in two
// versions, and a history. Then the etcd is copied. Because uids, times and revisions are
// copied, nothing is normalised. The servers' own writes afterwards (leases, the state of
// the event log) would let the revisions of the two etcds diverge. So before a request
// whose answer depends on the newest revision, the etcd that is behind gets writes of an
// unused key, and a comparison that coincides with such a write is repeated.
//
// Exceptions: CBOR is decoded, because its maps are in random order; compressed bodies are
// compared uncompressed; headers that identify a request or a time are ignored; and so are
// the bookmarks that each server sends at its own times. A Table contains ages in seconds,
// so two answers are requested again if a second ends between them.
package twins

// Package twins sends the same reads to kube-apiserver and to Triune, each on a
// copy of one etcd, and expects the same bytes: bodies, revisions, continue tokens,
// watch transcripts and errors, in every encoding.
//
// kube-apiserver fills an etcd with objects of every kind, custom resources in two
// versions, and a history. Then the etcd is copied. As uids, times and revisions are
// those of the copied objects, nothing is normalised. What the two servers write of
// their own accord afterwards (leases, the state of the event log) would drive the
// revisions of the etcds apart; so before what depends on the newest revision the
// etcd that is behind is given revisions that mean nothing, and a comparison that
// such a write fell into is done again.
//
// What is not compared as bytes: CBOR is read, for its maps come in any order; compressed
// bodies are compared uncompressed, for compression is not part of what they say; headers that name a request or a moment
// are left out; and so are the bookmarks that each server sends when it likes. A Table
// counts seconds of age, so a pair of answers between which a second ends is asked for
// again.
package twins

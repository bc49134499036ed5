// Package etcdembed runs an etcd member in this process, with a [Member.Client] that calls it
// directly and stays safe after the member is closed.
//
// etcd itself offers embed and v3client, but they do not coordinate: a call that is inside the
// member while its database is closed, or that comes later, panics with a nil pointer in bbolt.
// Goroutines that nobody waits for make such calls; k8s.io/apiserver has one that asks for
// etcd's version. Here every call passes a gate that the member closes before its database: the
// member waits for calls in flight, streams end, and later calls return [ErrClosed].
//
// [Start] returns a [Member]. All its methods, and its client, are safe for concurrent use.
package etcdembed

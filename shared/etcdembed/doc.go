// Package etcdembed runs an etcd member inside the process, with a client that
// calls it directly and that cannot outlive it.
//
// etcd itself offers embed and v3client, which know nothing of each other: a call
// that is in the member while its database is closed, or that comes later, takes
// the process down with a nil pointer in bbolt. Goroutines that nobody waits for
// make such calls; k8s.io/apiserver has one that asks for etcd's version. Here every
// call passes a gate, which the member closes before its database: calls in flight
// are waited for, streams end, and later calls return [ErrClosed].
package etcdembed

// Package etcdstore keeps Kubernetes objects in etcd, in kube-apiserver's keys
// and encodings, byte for byte: either server can be pointed at what the other
// one wrote.
//
// Two layers. Package kv reads and writes keys, bytes and revisions and knows no
// objects. Store, here, puts objects on top of it: codec, encryption at rest, resource
// versions, selection. It reads from a byte cache where it can, and watches are served
// by that alone: no Store watches etcd. Package keywatch follows the cache; watcher.go
// makes objects of what it finds. Which revision a LIST reads is decided without I/O,
// in listplan.go.
//
// # What a client sees
//
// A resourceVersion is an etcd revision: an object's is its mod revision, a
// list's is the revision at which it is true. kube-apiserver answers most reads
// from its watch cache, and clients can tell: a resourceVersion that is not
// there yet is waited for three seconds and then refused with a retry hint,
// resourceVersion=0 ignores the limit, watches carry bookmarks. Store gives the
// same answers. With Config.Uncached it answers as kube-apiserver
// does for resources without a watch cache, which is how it serves Events.
//
// # Concurrency
//
// All methods of Store are safe for concurrent use and return when their context
// is done. A watch owns one goroutine, which ends when the context does or when
// Stop is called; its result channel is closed then.
package etcdstore

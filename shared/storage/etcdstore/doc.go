// Package etcdstore stores Kubernetes objects in etcd, in kube-apiserver's keys and
// encodings, byte for byte: either server can use the data of the other.
//
// Package kv reads and writes keys, bytes and revisions. [Store] adds objects: codec,
// encryption at rest, resource versions and selectors. It reads from a byte cache if it can,
// and watches read only from that: a Store never watches etcd. Package keywatch follows the
// cache for them, and watcher.go decodes its events. Which revision a LIST reads
// is decided without I/O, in listplan.go.
//
// [NewGetter] returns the Stores of all resources, and [Dial] connects to etcd. [New] makes a
// single Store.
//
// # What a client sees
//
// A resourceVersion is an etcd revision: that of an object is its mod revision, that of a
// list the revision at which it was read. kube-apiserver answers most reads from its watch
// cache, which clients can observe: a future resourceVersion is refused with a retry hint
// after three seconds, resourceVersion=0 ignores the limit, and watches have bookmarks. Store
// gives the same answers. With Config.Uncached it answers as kube-apiserver does for
// resources without a watch cache, such as Events.
//
// # Concurrency
//
// All methods of Store are safe for concurrent use and return when their context
// is done. A watch owns one goroutine, which ends when the context does or when
// Stop is called; its result channel is closed then.
package etcdstore

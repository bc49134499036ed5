// Package kv reads, writes and watches keys, bytes and revisions in etcd. It knows nothing
// of Kubernetes' objects.
//
// [New] makes a [Client] of an etcd client, and [Client.Watch] returns a [Stream]. A revision
// is the counter of the whole store; the mod revision of a key is the resourceVersion of an
// object. All methods of Client are safe for concurrent use and return etcd's errors
// unwrapped, so that callers can compare them with those of package rpctypes.
//
// Package etcdstore stores objects with it; the event log and the byte cache use it directly.
package kv

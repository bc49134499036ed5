// Package kv is the raw layer of Triune's storage: keys, bytes and revisions
// of etcd, and nothing of Kubernetes' objects.
//
// A revision is etcd's store-wide counter; a key's mod revision is what the API
// shows as the object's resourceVersion. All methods are safe for concurrent
// use, respect the context they are given, and return etcd's own errors
// unwrapped, so that callers can compare them with the values of rpctypes.
//
// Package etcdstore puts objects on top of it; the event log and the byte cache
// use it alone.
package kv

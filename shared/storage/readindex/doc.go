// Package readindex asks etcd for current revisions, with one request for many readers.
//
// A linearizable read must reflect every write that was acknowledged before the read began. A
// reader that has the bytes in memory needs no bytes from etcd, only a revision. Concurrent
// readers share a request. A reader joins only a request that has not been sent yet, because
// the response to an earlier one may be older than the read.
package readindex

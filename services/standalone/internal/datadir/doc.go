// Package datadir locks a data directory, so that only one process uses it. [Lock] may be
// called once in a process for each directory.
//
// etcd has a lock of its own, but waits for it silently, and NATS has none.
package datadir

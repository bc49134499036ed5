// Package datadir keeps two processes from using one data directory.
//
// etcd takes a lock of its own, but waits for it without a word, and NATS takes
// none.
package datadir

// Package cluster starts and stops whole control planes on loopback for tests: the
// reference kube-apiserver, the single process triune, and the three tiers with any number
// of replicas, each with the etcd, NATS and certificates that it needs.
//
// All of them are a [Cluster], so that one test body runs against every topology. Ports are
// free ones, and files are in one temporary directory. Each process leads its own process
// group and is killed by its ID at the end of the test; a failing test logs the ends of all
// logs.
//
// Command lines of all programs are built only in flags.go.
package cluster

// Package cluster starts and stops whole control planes on loopback for tests:
// the reference kube-apiserver, the one-process triune, and the three tiers
// with any number of replicas, each with the etcd, NATS and certificates that
// they need.
//
// All of them are a [Cluster], so that one test body runs against every
// topology. Ports are free ones, files are below one temporary directory, each
// process is the leader of a process group of its own and ends with the test,
// killed by its id; a failing test is given the ends of all logs.
//
// The command lines of every program are built in flags.go and nowhere else.
package cluster

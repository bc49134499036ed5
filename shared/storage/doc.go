// Package storage opens the etcd that a tier's flags name: the connection, the
// encryption at rest, the health checks, and the work in the background without
// which an etcd grows and nobody knows how much.
//
// It is for tiers that keep few kinds of objects and set key and codec of each
// themselves. Core, which has a storage factory for all of Kubernetes, opens its
// own.
package storage

// Package etcdroles makes the users and roles by which etcd keeps the tiers apart.
//
// With authentication turned on and --client-cert-auth, etcd takes the common name of a
// client certificate for the user. Each tier has a user and a role of its own, both of the
// name of its stream, triune-core for example. A role may read and write the keys of its
// tier (eventlog.Routes), and read what all of them need; that of core may read everything,
// because the relay does. [Ensure] brings an etcd there.
//
// What no role allows takes the user root, whose certificate no tier has: changing users
// and roles, members, backups, and also compactions (Compact in etcd's
// server/etcdserver/api/v3rpc/key.go). An etcd with roles has to compact by itself
// (etcd --auto-compaction-retention).
package etcdroles

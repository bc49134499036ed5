// Package etcdroles manages the users and roles in etcd that separate the tiers.
//
// With authentication enabled and --client-cert-auth, etcd takes the common name of a client
// certificate as the user. Each tier has one user and one role, both named after its stream,
// for example triune-core. A role may read and write the keys of its tier (eventlog.Routes),
// and read the keys that every tier needs. Core's role may read everything, because the relay
// does.
//
// [Ensure] sets up an etcd, and [User] returns the name of a tier's user.
//
// Everything else requires the user root, whose certificate no tier has: managing users, roles
// and members, backups, and also compaction (Compact in etcd's
// server/etcdserver/api/v3rpc/key.go). An etcd with roles must compact itself (etcd
// --auto-compaction-retention).
package etcdroles

package etcdroles

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
)

const (
	read      = clientv3.PermissionType(clientv3.PermRead)
	readWrite = clientv3.PermissionType(clientv3.PermReadWrite)
)

// permissions maps ranges of keys to the permission that a role has on them.
type permissions map[kv.KeyRange]clientv3.PermissionType

// permissionsOf returns the permissions of a tier's role.
func permissionsOf(routes *eventlog.Routes, tier eventlog.Tier) permissions {
	p := permissions{
		// The state of compaction by API servers.
		{Key: etcdstore.CompactKey}: read,
		// The state of the relay, which tells readers the history of a stream.
		kv.PrefixKeys(routes.StatePrefix()): read,
		// A key that need not exist, for reading etcd's revision.
		{Key: routes.Prefix()}: read,
	}
	if tier == eventlog.Core {
		p[kv.PrefixKeys(routes.StatePrefix())] = readWrite
		p[kv.PrefixKeys(routes.Prefix())] = read
	}
	for _, keys := range routes.Ranges(tier) {
		p[keys] = readWrite
	}
	return p
}

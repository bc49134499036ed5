package etcdroles

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/etcdstore"
	"triune.dev/shared/etcdstore/kv"
	"triune.dev/shared/eventlog"
)

const (
	read      = clientv3.PermissionType(clientv3.PermRead)
	readWrite = clientv3.PermissionType(clientv3.PermReadWrite)
)

// permissions is what a role allows, by range of keys.
type permissions map[kv.KeyRange]clientv3.PermissionType

// permissionsOf returns what the role of a tier allows.
func permissionsOf(routes *eventlog.Routes, tier eventlog.Tier) permissions {
	p := permissions{
		// Who compacts, where an API server does.
		{Key: etcdstore.CompactKey}: read,
		// What the relay has to remember. The others find out by it which history a
		// stream tells.
		kv.PrefixKeys(routes.StatePrefix()): read,
		// A key that need not exist, of which etcd's revision is read.
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

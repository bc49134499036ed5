// Package storage opens the storage of a tier: the connections to etcd, encryption at rest,
// the caches and the event log that feeds them, health checks, and background work such as
// compaction and metrics.
//
// [Open] returns a [Storage] for the flags in [Config]. Its RESTOptions and Custom are the
// storage options of resources: RESTOptions with the encodings and keys of a storage
// factory, which core has, Custom for callers that set both themselves. After all storages
// are made, Run or Around runs the background work. Close ends the connections.
package storage

package bytecache

// Stats describe a cache.
type Stats struct {
	Live bool
	// Reading is the number of objects that a load under way has read so far, of Total; both
	// are 0 if there is none.
	Reading, Total int64
	// Objects and Bytes are the number and size of the objects in the tree.
	Objects int
	Bytes   int64
	// Plain is the size of the compressible stored bytes, in tree and log, that are not
	// compressed.
	Plain int64
	// LogChanges and LogBytes are the number and size of the changes in the log. The log
	// has every change after LogFloor.
	LogChanges int
	LogBytes   int64
	LogFloor   int64
	// Pinned is the number of snapshots pinned for the pages of LISTs, PinnedBytes an upper
	// bound of the memory that only they retain.
	Pinned      int
	PinnedBytes int64
	// Revision is that of the newest state, 0 if the cache is not live.
	Revision int64
	// Loads is the number of times that the objects were read from etcd, Changes that of
	// changes received since.
	Loads, Changes int64
}

// Stats returns the current figures.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{
		Live: c.phase == live, Objects: c.tree.Len(), Bytes: c.treeBytes, Plain: c.plain,
		LogChanges: c.log.length(), LogBytes: c.log.bytes, LogFloor: c.log.floor,
		Pinned: len(c.pinned.list), PinnedBytes: c.pinned.retainedBytes(),
		Loads: c.loads, Changes: c.changes,
	}
	s.Reading, s.Total = c.progress.read.Load(), c.progress.total.Load()
	if s.Live {
		s.Revision = c.revisionLocked()
	}
	return s
}

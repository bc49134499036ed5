package bytecache

import (
	"sync/atomic"
	"unsafe"
)

// storedBytes are the bytes of an entry, plain or compressed. Either plain or compressed is
// set, unless there are no bytes; both are set for a moment while one replaces the other.
type storedBytes struct {
	// plain points to the first of length bytes.
	plain      atomic.Pointer[byte]
	compressed atomic.Pointer[compressed]
	length     uint32
	// recentlyRead is 1 if the bytes were read since the compressor last looked, else 0.
	recentlyRead atomic.Uint32
	// epoch is the epoch of the cache, plus one, while the entry is in its tree or log,
	// else 0. It is guarded by the cache's mu, as is incompressible.
	epoch int32
	// incompressible is set when compression was tried in vain.
	incompressible bool
}

// hold sets the bytes. It is called once, before the entry is shared.
func (b *storedBytes) hold(data []byte) {
	b.length = uint32(len(data)) // etcd's largest value is far below 4 GiB
	b.recentlyRead.Store(1)
	if len(data) > 0 {
		b.setPlain(data)
	}
}

func (b *storedBytes) setPlain(data []byte) { b.plain.Store(unsafe.SliceData(data)) }

// Data returns the stored bytes, decrypted. They must not be modified. If they are
// compressed, Data returns a copy; when they are read repeatedly and there is room, the
// entry retains that copy.
func (e *Entry) Data() []byte {
	if data := e.Plain(); data != nil || e.length == 0 {
		return data
	}
	data, _ := e.decompress(nil)
	return data
}

// DataInto is Data with a buffer: compressed bytes that are to stay compressed are
// decompressed into scratch, so the result is valid until scratch is used again. The second
// result is scratch, or a larger buffer to use instead.
func (e *Entry) DataInto(scratch []byte) (data, grown []byte) {
	if data := e.Plain(); data != nil || e.length == 0 {
		return data, scratch
	}
	return e.decompress(scratch)
}

// Size returns the length of Data.
func (e *Entry) Size() int { return int(e.length) }

// Plain returns the stored bytes, or nil if they are compressed or empty.
func (e *Entry) Plain() []byte {
	first := e.plain.Load()
	if first == nil {
		return nil
	}
	if e.recentlyRead.Load() == 0 {
		e.recentlyRead.Store(1)
	}
	return unsafe.Slice(first, e.length)
}

// decompress is DataInto for bytes that were compressed a moment ago.
func (e *Entry) decompress(scratch []byte) (data, grown []byte) {
	for {
		if p := e.compressed.Load(); p != nil {
			again := e.recentlyRead.Swap(1) == 1
			if again && p.dictionary.cache.space.plainRoom(int64(e.length)) {
				data := p.dictionary.decompress(p.data, make([]byte, 0, e.length))
				p.dictionary.cache.restorePlain(e, p, data)
				return data, scratch
			}
			if cap(scratch) < int(e.length) {
				scratch = make([]byte, 0, e.length)
			}
			data := p.dictionary.decompress(p.data, scratch[:0])
			return data, data
		}
		if data := e.Plain(); data != nil {
			return data, scratch
		}
	}
}

// setCompressed replaces the plain bytes of entries by the results, for those that the
// cache still has. A nil result marks an entry as incompressible.
func (c *Cache) setCompressed(batch []*Entry, results []*compressed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range batch {
		if e.epoch != c.epoch+1 || !e.compressibleLocked() {
			continue
		}
		c.countPlainLocked(-int64(e.length))
		if results[i] == nil {
			e.incompressible = true
			continue
		}
		c.space.garbageLeft.Store(true)
		e.compressed.Store(results[i]) // before plain is cleared: readers always find one of them
		e.plain.Store(nil)
	}
}

// restorePlain stores the plain bytes of an entry again. It does not wait for a busy cache,
// since the caller itself may hold its lock.
func (c *Cache) restorePlain(e *Entry, was *compressed, data []byte) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if e.epoch != c.epoch+1 || e.compressed.Load() != was {
		return
	}
	e.setPlain(data)
	e.compressed.Store(nil)
	c.countPlainLocked(int64(e.length))
}

// compressibleLocked reports whether the bytes count as plain bytes that could be
// compressed.
func (b *storedBytes) compressibleLocked() bool {
	return b.length >= minCompressBytes && !b.incompressible && b.plain.Load() != nil
}

// countPlainLocked adds to the number of plain bytes.
func (c *Cache) countPlainLocked(bytes int64) {
	c.plain += bytes
	c.space.plain.Add(bytes)
}

// addPlainLocked is countPlainLocked for new bytes. It updates plainAdded first, so that a
// reader that sees the bytes in plain also sees them in plainAdded.
func (c *Cache) addPlainLocked(bytes int64) {
	c.space.plainAdded.Add(bytes)
	c.countPlainLocked(bytes)
}

// trackEntryLocked is called for an entry that enters the tree or the log.
func (c *Cache) trackEntryLocked(e *Entry) {
	if e == nil || e.epoch != 0 {
		return
	}
	e.epoch = c.epoch + 1
	if e.compressibleLocked() {
		c.addPlainLocked(int64(e.length))
	}
}

// untrackEntryLocked is called for an entry that leaves both the tree and the log.
func (c *Cache) untrackEntryLocked(e *Entry) {
	if e == nil || e.epoch != c.epoch+1 {
		return
	}
	if e.compressibleLocked() {
		c.countPlainLocked(-int64(e.length))
	}
	e.epoch = 0
}

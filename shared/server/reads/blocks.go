package reads

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sync"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/render"
)

const (
	// keysPerBlock is the average number of keys in a block.
	keysPerBlock = 32
	// maxBlockObjects bounds the number of objects in a block.
	maxBlockObjects = 128
	// minBlockObjects is the number of objects from which on an uncompressed list is sent
	// in blocks.
	minBlockObjects = 256
	// maxPlainBlockBytes bounds the stored bytes of an uncompressed block that is cached,
	// and maxNewPlainBytes those of all blocks that one list may add to the cache.
	maxPlainBlockBytes = 512 << 10
	maxNewPlainBytes   = 16 << 20
)

// blockID identifies the objects of a block, their revisions, and their encoding. It
// consists of two hashes with different seeds, so that collisions are practically
// impossible.
type blockID struct{ a, b uint64 }

// blockStyle has the other properties that determine the bytes of a block.
type blockStyle struct {
	format render.Format
	// first is set for the first block of a list, which no comma precedes.
	first bool
	// deflated is set for a compressed block.
	deflated bool
	// incarnation is the snapshot's.
	incarnation int
}

func (s blockStyle) bits() uint64 {
	n := uint64(s.incarnation)<<32 | uint64(s.format)<<2
	if s.first {
		n |= 1
	}
	if s.deflated {
		n |= 2
	}
	return n
}

// block is a part of a list that is compressed by itself.
type block struct {
	// data ends at a byte boundary. It does not end the deflate stream.
	data []byte
	crc  uint32
	size int64 // uncompressed
}

// blockCache caches parts of list responses. Their bytes count against the budget of the
// byte cache, as forms of entries that exist only for this purpose.
type blockCache struct {
	once  sync.Once
	kind  bytecache.FormID
	seeds [4]uint64

	mu      sync.Mutex
	holders map[blockID]*blockHolder // guarded by mu
	// swept is the number of holders after the last sweep.
	swept int
}

// blockHolder holds one block.
type blockHolder struct {
	// making is held while the block is encoded, so that this happens once.
	making sync.Mutex
	entry  bytecache.Entry
}

func (b *blockCache) init() {
	b.once.Do(func() {
		b.kind = bytecache.NewFormID()
		for i := range b.seeds {
			b.seeds[i] = rand.Uint64()
		}
		b.holders = map[blockID]*blockHolder{}
	})
}

// beginsBlock reports whether an object begins a block. The result is the same at every
// revision.
func beginsBlock(e *bytecache.Entry) bool { return e.KeyHash()>>32%keysPerBlock == 0 }

// id returns the ID of a block. It reads only the entries themselves, because their keys
// are elsewhere in memory.
func (b *blockCache) id(entries []*bytecache.Entry, style blockStyle) blockID {
	id := blockID{b.seeds[0] ^ style.bits(), b.seeds[1] ^ style.bits()}
	for _, e := range entries {
		key, revision := e.KeyHash(), uint64(e.Revision)
		id.a = mix(id.a^key, b.seeds[2]^revision)
		id.b = mix(id.b^revision, b.seeds[3]^key)
	}
	return id
}

// mix folds the product of two numbers, so that every bit depends on all bits of both.
func mix(x, y uint64) uint64 {
	high, low := bits.Mul64(x, y)
	return high ^ low
}

// eachPart calls yield for the objects of a list, grouped by block, until yield returns
// false. The slice is valid only during the call.
func eachPart(found *listResult, yield func(part []*bytecache.Entry) bool) {
	var entries [maxBlockObjects]*bytecache.Entry
	count, more := 0, true
	found.each(func(e *bytecache.Entry) bool {
		if count == maxBlockObjects || count > 0 && beginsBlock(e) {
			more = yield(entries[:count])
			count = 0
		}
		if more {
			entries[count] = e
			count++
		}
		return more
	})
	if count > 0 {
		yield(entries[:count])
	}
}

// holder returns the holder of a block; known reports whether it existed before.
func (b *blockCache) holder(id blockID) (h *blockHolder, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h, known = b.holders[id]; !known {
		b.sweepLocked()
		h = &blockHolder{}
		b.holders[id] = h
	}
	return h, known
}

// deflated returns a compressed block, which build makes unless it is cached.
func (b *blockCache) deflated(budget *bytecache.Budget, id blockID, build func() (block, error)) (block, error) {
	h, _ := b.holder(id)
	if data, ok := h.entry.CachedForm(b.kind); ok {
		return unmarshalBlock(data), nil
	}
	h.making.Lock()
	defer h.making.Unlock()
	data, err := h.entry.Form(budget, b.kind, func(*bytecache.Entry) ([]byte, error) {
		made, err := build()
		return made.marshal(), err
	})
	if err != nil {
		return block{}, err
	}
	return unmarshalBlock(data), nil
}

// cached returns an uncompressed block; ok is false if it is not cached.
func (b *blockCache) cached(id blockID) (data []byte, ok bool) {
	b.mu.Lock()
	h := b.holders[id]
	b.mu.Unlock()
	if h == nil {
		return nil, false
	}
	return h.entry.CachedForm(b.kind)
}

// cacheRepeated caches the block that build makes if the block was requested before,
// because a single request is not worth the copy. Otherwise, and if another caller is
// making the block, it returns nil.
func (b *blockCache) cacheRepeated(budget *bytecache.Budget, id blockID, build func() ([]byte, error)) ([]byte, error) {
	h, known := b.holder(id)
	if !known || !h.making.TryLock() {
		return nil, nil
	}
	defer h.making.Unlock()
	return h.entry.Form(budget, b.kind, func(*bytecache.Entry) ([]byte, error) { return build() })
}

// sweepLocked removes holders whose blocks the budget has dropped. It is called for each
// new holder, and sweeps when their number has doubled.
func (b *blockCache) sweepLocked() {
	if len(b.holders) < 2*b.swept+256 {
		return
	}
	for id, h := range b.holders {
		if !h.making.TryLock() {
			continue
		}
		// This counts as a use of the block, but sweeps are rare.
		if _, ok := h.entry.CachedForm(b.kind); !ok {
			delete(b.holders, id)
		}
		h.making.Unlock()
	}
	b.swept = len(b.holders)
}

// blockHeaderSize is the size of the checksum and length before the data of a marshaled
// block.
const blockHeaderSize = 12

func (b block) marshal() []byte {
	if b.data == nil {
		return nil
	}
	out := make([]byte, blockHeaderSize, blockHeaderSize+len(b.data))
	binary.LittleEndian.PutUint32(out, b.crc)
	binary.LittleEndian.PutUint64(out[4:], uint64(b.size))
	return append(out, b.data...)
}

func unmarshalBlock(data []byte) block {
	return block{
		crc:  binary.LittleEndian.Uint32(data),
		size: int64(binary.LittleEndian.Uint64(data[4:])),
		data: data[blockHeaderSize:],
	}
}

// appendPart appends the objects of a part; first says that no comma precedes them.
func (h *Handlers) appendPart(dst []byte, items *itemWriter, part []*bytecache.Entry, first bool) ([]byte, error) {
	for i, e := range part {
		var err error
		if dst, err = items.append(dst, e, first && i == 0); err != nil {
			h.unencodable.Store(e)
			return dst, err
		}
	}
	return dst, nil
}

// writeParts appends the objects of a list to its stream. With inBlocks it uses blocks
// where they are cached or worth caching.
func (h *Handlers) writeParts(s *stream, items *itemWriter, found *listResult, inBlocks bool) (failed error) {
	style := blockStyle{format: items.format, first: true, incarnation: found.incarnation()}
	room := maxNewPlainBytes
	eachPart(found, func(part []*bytecache.Entry) bool {
		var data []byte
		if inBlocks {
			data, failed = h.plainBlock(items, part, style, &room)
		}
		switch {
		case failed != nil:
		case data != nil:
			failed = s.put(data)
		default:
			for i := range part {
				if s.bytes, failed = h.appendPart(s.bytes, items, part[i:i+1], style.first && i == 0); failed != nil {
					break
				}
				if failed = s.spill(); failed != nil {
					break
				}
			}
		}
		style.first = false
		return failed == nil
	})
	return failed
}

// plainBlock returns the uncompressed block of a part, nil if there is none. room is the
// number of stored bytes for which new blocks may be cached.
func (h *Handlers) plainBlock(items *itemWriter, part []*bytecache.Entry, style blockStyle, room *int) ([]byte, error) {
	size := 0
	for _, e := range part {
		size += e.Size()
	}
	if size > maxPlainBlockBytes {
		return nil, nil
	}
	id := h.blocks.id(part, style)
	if data, ok := h.blocks.cached(id); ok {
		return data, nil
	}
	if *room -= size; *room < 0 {
		return nil, nil
	}
	return h.blocks.cacheRepeated(h.space.Budget(), id, func() ([]byte, error) {
		raw := newBuffer()
		defer raw.free()
		var err error
		raw.bytes, err = h.appendPart(raw.bytes, items, part, style.first)
		return bytes.Clone(raw.bytes), err
	})
}

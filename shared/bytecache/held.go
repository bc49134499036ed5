package bytecache

import (
	"sync/atomic"
	"unsafe"
)

// held is how an entry has its bytes: as they are, or compressed. One of plain and
// packed is set, unless there are no bytes; both are for a moment, while the one
// takes the other's place.
type held struct {
	// plain is the first of length bytes.
	plain  atomic.Pointer[byte]
	packed atomic.Pointer[packed]
	length uint32
	// used: somebody has read the bytes since the packer last came by. It is 0 or 1.
	used atomic.Uint32
	// era is the cache's, plus one, while the entry is in its tree or its log; 0
	// before and after. Guarded by the cache's mu, as is solid.
	era int32
	// solid: compressing has been tried, and is not worth it.
	solid bool
}

// hold is called once, before anybody else sees the entry.
func (h *held) hold(data []byte) {
	h.length = uint32(len(data)) // etcd's largest value is far below 4 GiB
	h.used.Store(1)
	if len(data) > 0 {
		h.setPlain(data)
	}
}

func (h *held) setPlain(data []byte) { h.plain.Store(unsafe.SliceData(data)) }

// Data returns the stored bytes, decrypted. Nobody may change them. Where they are
// held compressed, what is returned is a copy; of what is read so twice in a while the
// copy is kept, if there is room for it.
func (e *Entry) Data() []byte {
	if data := e.Plain(); data != nil || e.length == 0 {
		return data
	}
	data, _ := e.unpack(nil)
	return data
}

// Open returns what Data does, for as long as the caller leaves scratch alone: that
// is where the bytes are put if they are held compressed and are to stay so. The
// second result is scratch, or a larger one to use in its place.
func (e *Entry) Open(scratch []byte) (data, grown []byte) {
	if data := e.Plain(); data != nil || e.length == 0 {
		return data, scratch
	}
	return e.unpack(scratch)
}

// Size is the number of bytes that Data returns.
func (e *Entry) Size() int { return int(e.length) }

// Plain returns what Data does, or nil where the bytes are held compressed, or there
// are none.
func (e *Entry) Plain() []byte {
	first := e.plain.Load()
	if first == nil {
		return nil
	}
	if e.used.Load() == 0 {
		e.used.Store(1)
	}
	return unsafe.Slice(first, e.length)
}

// unpack is Open for bytes that were compressed a moment ago.
func (e *Entry) unpack(scratch []byte) (data, grown []byte) {
	for {
		if p := e.packed.Load(); p != nil {
			again := e.used.Swap(1) == 1
			if again && p.by.cache.space.room(int64(e.length)) {
				data := p.by.unpack(p.data, make([]byte, 0, e.length))
				p.by.cache.keepPlain(e, p, data)
				return data, scratch
			}
			if cap(scratch) < int(e.length) {
				scratch = make([]byte, 0, e.length)
			}
			data := p.by.unpack(p.data, scratch[:0])
			return data, data
		}
		if data := e.Plain(); data != nil {
			return data, scratch
		}
	}
}

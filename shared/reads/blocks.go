package reads

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"hash/maphash"
	"net/http"
	"sync"

	"triune.dev/shared/bytecache"
	"triune.dev/shared/encoded"
)

const (
	// blockOneIn: one key in so many begins a block.
	blockOneIn = 32
	// maxBlock is the largest number of objects in a block.
	maxBlock = 128
)

// blockID names the objects of a block, at their revisions, and their format. Two
// hashes with seeds of their own make it certain enough that no two blocks share
// one.
type blockID struct{ a, b uint64 }

// block is a part of a list, compressed by itself.
type block struct {
	// data ends at a byte boundary and does not end the deflate stream.
	data []byte
	crc  uint32
	size int64 // uncompressed
}

// blocks keeps compressed blocks. Their bytes are under the budget of the byte
// cache, in forms of entries that exist for that only.
type blocks struct {
	once     sync.Once
	kind     bytecache.Kind
	seeds    [2]maphash.Seed
	boundary maphash.Seed

	mu      sync.Mutex
	holders map[blockID]*holder // guarded by mu
	// swept is the number of holders left by the last sweep.
	swept int
}

type holder struct {
	// turn is held while the block is compressed, so that it is done once.
	turn  sync.Mutex
	entry bytecache.Entry
}

func (b *blocks) init() {
	b.once.Do(func() {
		b.kind = bytecache.NewKind()
		b.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
		b.boundary = maphash.MakeSeed()
		b.holders = map[blockID]*holder{}
	})
}

// begins tells whether an object is the first of a block.
func (b *blocks) begins(key string) bool {
	return maphash.String(b.boundary, key)%blockOneIn == 0
}

func (b *blocks) id(entries []*bytecache.Entry, f encoded.Format, first bool) blockID {
	var id [2]uint64
	for i := range id {
		var hash maphash.Hash
		hash.SetSeed(b.seeds[i])
		_ = hash.WriteByte(byte(f))
		if first {
			_ = hash.WriteByte(1)
		}
		var revision [9]byte // a zero byte ends the key before it
		for _, e := range entries {
			_, _ = hash.WriteString(e.Key)
			binary.LittleEndian.PutUint64(revision[1:], uint64(e.Revision))
			_, _ = hash.Write(revision[:])
		}
		id[i] = hash.Sum64()
	}
	return blockID{id[0], id[1]}
}

var errNotKept = errors.New("not kept")

// get returns a block, made by render unless it is kept.
func (b *blocks) get(budget *bytecache.Budget, id blockID, render func() (block, error)) (block, error) {
	b.mu.Lock()
	h, ok := b.holders[id]
	if !ok {
		b.sweepLocked(budget)
		h = &holder{}
		b.holders[id] = h
	}
	b.mu.Unlock()
	if data, err := h.entry.Form(budget, b.kind, notKept); err == nil {
		return unpack(data), nil
	}
	h.turn.Lock()
	defer h.turn.Unlock()
	data, err := h.entry.Form(budget, b.kind, func(*bytecache.Entry) ([]byte, error) {
		made, err := render()
		return made.pack(), err
	})
	if err != nil {
		return block{}, err
	}
	return unpack(data), nil
}

func notKept(*bytecache.Entry) ([]byte, error) { return nil, errNotKept }

// sweepLocked forgets the holders whose blocks the budget has dropped. It is called
// for each new one and works when their number has doubled.
func (b *blocks) sweepLocked(budget *bytecache.Budget) {
	if len(b.holders) < 2*b.swept+256 {
		return
	}
	for id, h := range b.holders {
		if !h.turn.TryLock() {
			continue
		}
		// Looking counts as a use, which spares the block once more; sweeps are rare.
		if _, err := h.entry.Form(budget, b.kind, notKept); err != nil {
			delete(b.holders, id)
		}
		h.turn.Unlock()
	}
	b.swept = len(b.holders)
}

// pack and unpack: the checksum and the size stand before the data.
const packed = 12

func (b block) pack() []byte {
	if b.data == nil {
		return nil
	}
	out := make([]byte, packed, packed+len(b.data))
	binary.LittleEndian.PutUint32(out, b.crc)
	binary.LittleEndian.PutUint64(out[4:], uint64(b.size))
	return append(out, b.data...)
}

func unpack(data []byte) block {
	return block{
		crc:  binary.LittleEndian.Uint32(data),
		size: int64(binary.LittleEndian.Uint64(data[4:])),
		data: data[packed:],
	}
}

// deflater compresses one block.
type deflater struct {
	out    bytes.Buffer
	writer *flate.Writer
}

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, gzipLevel)
	if err != nil {
		panic(err) // the level is valid
	}
	return &deflater{writer: w}
}}

// compress makes a block of raw bytes. The writer begins without history, so that
// the block can stand after any other.
func compress(raw []byte) (block, error) {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.out.Reset()
	d.writer.Reset(&d.out)
	if _, err := d.writer.Write(raw); err != nil {
		return block{}, err
	}
	// A flush ends with an empty stored block, at a byte boundary.
	if err := d.writer.Flush(); err != nil {
		return block{}, err
	}
	return block{data: bytes.Clone(d.out.Bytes()), crc: crc32.ChecksumIEEE(raw), size: int64(len(raw))}, nil
}

// gzipHeader is that of compress/gzip at its fastest level, without a name or time.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255}

// lastBlock is an empty stored block that ends a deflate stream.
var lastBlock = []byte{1, 0, 0, 0xff, 0xff}

// joiner writes blocks as one gzip member.
type joiner struct {
	*stream
	crc  uint32
	size int64
}

func (j *joiner) write(b block) error {
	j.crc = joinedCRC(j.crc, b.crc, b.size)
	j.size += b.size
	j.bytes = append(j.bytes, b.data...)
	return j.spill()
}

// stored writes a few bytes as they are.
func (j *joiner) stored(raw []byte) error {
	for len(raw) > 0 {
		n := min(len(raw), 1<<16-1)
		j.bytes = append(j.bytes, 0, byte(n), byte(n>>8), ^byte(n), ^byte(n>>8))
		j.bytes = append(j.bytes, raw[:n]...)
		j.crc = joinedCRC(j.crc, crc32.ChecksumIEEE(raw[:n]), int64(n))
		j.size += int64(n)
		raw = raw[n:]
	}
	return j.spill()
}

func (j *joiner) end() error {
	j.bytes = append(j.bytes, lastBlock...)
	j.bytes = binary.LittleEndian.AppendUint32(j.bytes, j.crc)
	j.bytes = binary.LittleEndian.AppendUint32(j.bytes, uint32(j.size))
	return j.flush()
}

// writeBlocks sends a whole list, or a page of it, in compressed blocks.
func (h *Handlers) writeBlocks(w http.ResponseWriter, req *http.Request, c choice, found *matched, envelope encoded.Envelope, body *body, size int64) bool {
	h.blocks.init()
	s := &stream{ctx: req.Context(), w: w, buffer: newBuffer(), contentType: c.contentType, stitched: true}
	defer s.free()
	j := &joiner{stream: s}
	j.bytes = append(j.bytes, gzipHeader...)
	raw := newBuffer()
	defer raw.free()
	raw.bytes = envelope.AppendOpen(raw.bytes, size)
	failed := j.stored(raw.bytes)
	first := true
	var entries [maxBlock]*bytecache.Entry
	count := 0
	send := func() error {
		part := entries[:count]
		b, err := h.blocks.get(h.space.Budget(), h.blocks.id(part, c.format, first), func() (block, error) {
			raw.bytes = raw.bytes[:0]
			for i, e := range part {
				var err error
				if raw.bytes, err = body.append(raw.bytes, e, first && i == 0); err != nil {
					h.broken.Store(e)
					return block{}, err
				}
			}
			return compress(raw.bytes)
		})
		first, count = false, 0
		if err != nil {
			return err
		}
		return j.write(b)
	}
	found.each(func(e *bytecache.Entry) bool {
		if count == maxBlock || count > 0 && h.blocks.begins(e.Key) {
			if failed = send(); failed != nil {
				return false
			}
		}
		entries[count] = e
		count++
		return true
	})
	if failed == nil {
		failed = send()
	}
	if failed == nil {
		failed = j.stored(envelope.Tail)
	}
	if failed == nil {
		failed = j.end()
	}
	return s.finish(failed)
}

package reads

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"math/rand/v2"
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
	// blocksFrom is the number of objects from which on a list that is not compressed is
	// sent in blocks, too.
	blocksFrom = 256
	// maxPlainBlock is how many stored bytes the objects of a block may have that is kept
	// as it is sent, and maxPlainKept those of all blocks that one list may add.
	maxPlainBlock = 512 << 10
	maxPlainKept  = 16 << 20
)

// blockID names the objects of a block, at their revisions, and how they are sent. Two
// hashes with seeds of their own make it certain enough that no two blocks share one.
type blockID struct{ a, b uint64 }

// blockStyle is what decides, beside the objects, about the bytes of a block.
type blockStyle struct {
	format encoded.Format
	// first: nothing stands before it.
	first bool
	// deflated: it is a block that compress has made.
	deflated bool
	// history is the snapshot's.
	history int
}

func (s blockStyle) number() uint64 {
	n := uint64(s.history)<<32 | uint64(s.format)<<2
	if s.first {
		n |= 1
	}
	if s.deflated {
		n |= 2
	}
	return n
}

// block is a part of a list, compressed by itself.
type block struct {
	// data ends at a byte boundary and does not end the deflate stream.
	data []byte
	crc  uint32
	size int64 // uncompressed
}

// blocks keeps parts of lists as they are sent. Their bytes are under the budget of the
// byte cache, in forms of entries that exist for that only.
type blocks struct {
	once  sync.Once
	kind  bytecache.FormID
	seeds [4]uint64

	mu      sync.Mutex
	holders map[blockID]*holder // guarded by mu
	// swept is the number of holders left by the last sweep.
	swept int
}

type holder struct {
	// turn is held while the block is made, so that it is done once.
	turn  sync.Mutex
	entry bytecache.Entry
}

func (b *blocks) init() {
	b.once.Do(func() {
		b.kind = bytecache.NewFormID()
		for i := range b.seeds {
			b.seeds[i] = rand.Uint64()
		}
		b.holders = map[blockID]*holder{}
	})
}

// beginsBlock tells whether an object is the first of one, at every revision the same.
func beginsBlock(e *bytecache.Entry) bool { return e.KeyHash()>>32%blockOneIn == 0 }

// id reads nothing but the entries themselves: their keys are elsewhere in memory.
func (b *blocks) id(entries []*bytecache.Entry, style blockStyle) blockID {
	id := blockID{b.seeds[0] ^ style.number(), b.seeds[1] ^ style.number()}
	for _, e := range entries {
		key, revision := e.KeyHash(), uint64(e.Revision)
		id.a = mix(id.a^key, b.seeds[2]^revision)
		id.b = mix(id.b^revision, b.seeds[3]^key)
	}
	return id
}

// mix folds the product of two numbers, on each bit of which all bits of both have a part.
func mix(x, y uint64) uint64 {
	high, low := bits.Mul64(x, y)
	return high ^ low
}

// parts calls yield for the objects of a list in the parts that blocks are made of, until it
// returns false. A part is for the call only.
func parts(found *matched, yield func(part []*bytecache.Entry) bool) {
	var entries [maxBlock]*bytecache.Entry
	count, more := 0, true
	found.each(func(e *bytecache.Entry) bool {
		if count == maxBlock || count > 0 && beginsBlock(e) {
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

// holder returns what holds a block; known tells whether there was one before.
func (b *blocks) holder(id blockID) (h *holder, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h, known = b.holders[id]; !known {
		b.sweepLocked()
		h = &holder{}
		b.holders[id] = h
	}
	return h, known
}

// deflated returns a block, made by render unless it is kept.
func (b *blocks) deflated(budget *bytecache.Budget, id blockID, render func() (block, error)) (block, error) {
	h, _ := b.holder(id)
	if data, ok := h.entry.CachedForm(b.kind); ok {
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

// kept returns a block that is not compressed; ok is false if it is not kept.
func (b *blocks) kept(id blockID) (data []byte, ok bool) {
	b.mu.Lock()
	h := b.holders[id]
	b.mu.Unlock()
	if h == nil {
		return nil, false
	}
	return h.entry.CachedForm(b.kind)
}

// keep keeps the block that render makes, if it was to be kept before: what is asked for
// once is not worth the copy. It returns nil if it does not, and for all but one who make
// it at the same time.
func (b *blocks) keep(budget *bytecache.Budget, id blockID, render func() ([]byte, error)) ([]byte, error) {
	h, known := b.holder(id)
	if !known || !h.turn.TryLock() {
		return nil, nil
	}
	defer h.turn.Unlock()
	return h.entry.Form(budget, b.kind, func(*bytecache.Entry) ([]byte, error) { return render() })
}

// sweepLocked forgets the holders whose blocks the budget has dropped. It is called
// for each new one and works when their number has doubled.
func (b *blocks) sweepLocked() {
	if len(b.holders) < 2*b.swept+256 {
		return
	}
	for id, h := range b.holders {
		if !h.turn.TryLock() {
			continue
		}
		// Looking counts as a use, which spares the block once more; sweeps are rare.
		if _, ok := h.entry.CachedForm(b.kind); !ok {
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
	s := &stream{ctx: req.Context(), w: w, buffer: newBuffer(), contentType: c.contentType, stitched: true}
	defer s.free()
	j := &joiner{stream: s}
	j.bytes = append(j.bytes, gzipHeader...)
	raw := newBuffer()
	defer raw.free()
	raw.bytes = envelope.AppendOpen(raw.bytes, size)
	failed := j.stored(raw.bytes)
	if failed != nil {
		return s.finish(failed)
	}
	style := blockStyle{format: c.format, first: true, deflated: true, history: found.history()}
	parts(found, func(part []*bytecache.Entry) bool {
		var b block
		b, failed = h.blocks.deflated(h.space.Budget(), h.blocks.id(part, style), func() (block, error) {
			var err error
			if raw.bytes, err = h.appendPart(raw.bytes[:0], body, part, style.first); err != nil {
				return block{}, err
			}
			return compress(raw.bytes)
		})
		style.first = false
		if failed == nil {
			failed = j.write(b)
		}
		return failed == nil
	})
	if failed == nil {
		failed = j.stored(envelope.Tail)
	}
	if failed == nil {
		failed = j.end()
	}
	return s.finish(failed)
}

// appendPart appends the objects of a part; first: nothing stands before it.
func (h *Handlers) appendPart(dst []byte, body *body, part []*bytecache.Entry, first bool) ([]byte, error) {
	for i, e := range part {
		var err error
		if dst, err = body.append(dst, e, first && i == 0); err != nil {
			h.broken.Store(e)
			return dst, err
		}
	}
	return dst, nil
}

// writeParts appends the objects of a list to its stream; inBlocks: in blocks, where these
// are kept or worth it.
func (h *Handlers) writeParts(s *stream, body *body, found *matched, inBlocks bool) (failed error) {
	style := blockStyle{format: body.format, first: true, history: found.history()}
	room := maxPlainKept
	parts(found, func(part []*bytecache.Entry) bool {
		var data []byte
		if inBlocks {
			data, failed = h.plainBlock(body, part, style, &room)
		}
		switch {
		case failed != nil:
		case data != nil:
			failed = s.put(data)
		default:
			for i := range part {
				if s.bytes, failed = h.appendPart(s.bytes, body, part[i:i+1], style.first && i == 0); failed != nil {
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

// plainBlock returns the block of a part that is not compressed, nil if there is none. room
// is for how many stored bytes more there may be new ones.
func (h *Handlers) plainBlock(body *body, part []*bytecache.Entry, style blockStyle, room *int) ([]byte, error) {
	size := 0
	for _, e := range part {
		size += e.Size()
	}
	if size > maxPlainBlock {
		return nil, nil
	}
	id := h.blocks.id(part, style)
	if data, ok := h.blocks.kept(id); ok {
		return data, nil
	}
	if *room -= size; *room < 0 {
		return nil, nil
	}
	return h.blocks.keep(h.space.Budget(), id, func() ([]byte, error) {
		raw := newBuffer()
		defer raw.free()
		var err error
		raw.bytes, err = h.appendPart(raw.bytes, body, part, style.first)
		return bytes.Clone(raw.bytes), err
	})
}

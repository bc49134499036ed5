package reads

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"net/http"
	"sync"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/render"
)

// deflater compresses a block.
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

// compress compresses raw into a block. The writer starts without history, so that the
// block can follow any other.
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

// gzipHeader is the header that compress/gzip writes at its fastest level, without a name
// or time.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255}

// lastBlock is an empty stored block that ends a deflate stream.
var lastBlock = []byte{1, 0, 0, 0xff, 0xff}

// gzipJoiner writes blocks as one gzip member.
type gzipJoiner struct {
	*stream
	crc  uint32
	size int64
}

func (j *gzipJoiner) write(b block) error {
	j.crc = combineCRC(j.crc, b.crc, b.size)
	j.size += b.size
	j.bytes = append(j.bytes, b.data...)
	return j.spill()
}

// writeStored writes a few bytes uncompressed.
func (j *gzipJoiner) writeStored(raw []byte) error {
	for len(raw) > 0 {
		n := min(len(raw), 1<<16-1)
		j.bytes = append(j.bytes, 0, byte(n), byte(n>>8), ^byte(n), ^byte(n>>8))
		j.bytes = append(j.bytes, raw[:n]...)
		j.crc = combineCRC(j.crc, crc32.ChecksumIEEE(raw[:n]), int64(n))
		j.size += int64(n)
		raw = raw[n:]
	}
	return j.spill()
}

func (j *gzipJoiner) end() error {
	j.bytes = append(j.bytes, lastBlock...)
	j.bytes = binary.LittleEndian.AppendUint32(j.bytes, j.crc)
	j.bytes = binary.LittleEndian.AppendUint32(j.bytes, uint32(j.size))
	return j.flush()
}

// writeBlocks sends a list, or a page of it, in compressed blocks.
func (h *Handlers) writeBlocks(w http.ResponseWriter, req *http.Request, c choice, found *listResult, envelope render.Envelope, items *itemWriter, size int64) bool {
	s := &stream{ctx: req.Context(), w: w, buffer: newBuffer(), contentType: c.contentType, stitched: true}
	defer s.free()
	j := &gzipJoiner{stream: s}
	j.bytes = append(j.bytes, gzipHeader...)
	raw := newBuffer()
	defer raw.free()
	raw.bytes = envelope.AppendOpen(raw.bytes, size)
	failed := j.writeStored(raw.bytes)
	if failed != nil {
		return s.finish(failed)
	}
	style := blockStyle{format: c.format, first: true, deflated: true, incarnation: found.incarnation()}
	eachPart(found, func(part []*bytecache.Entry) bool {
		var b block
		b, failed = h.blocks.deflated(h.space.Budget(), h.blocks.id(part, style), func() (block, error) {
			var err error
			if raw.bytes, err = h.appendPart(raw.bytes[:0], items, part, style.first); err != nil {
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
		failed = j.writeStored(envelope.Tail)
	}
	if failed == nil {
		failed = j.end()
	}
	return s.finish(failed)
}

package bytecache

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// packed are the bytes of an entry, compressed.
type packed struct {
	data []byte
	by   *press
}

const (
	// minPacked is the size in bytes below which nothing is compressed.
	minPacked = 512
	// packedOverhead is what an entry needs beside its bytes while they are
	// compressed.
	packedOverhead = 48
	// dictionaryBytes is the most of which a dictionary is made: one large object
	// shows all that is common to a kind, of small ones there should be some. More
	// makes it slower and helps little.
	dictionaryBytes = 16 << 10
	// worthBytes is over how many bytes it is judged how good a dictionary is.
	worthBytes = 4 << 20
)

// press compresses and restores the entries of one cache. Objects of one resource
// have most in common with each other, so its dictionary is made of some of them.
type press struct {
	cache      *Cache
	dictionary []byte
	decoder    *zstd.Decoder // safe for concurrent use

	mu sync.Mutex
	// encoder is nil while nobody compresses: it is large. Guarded by mu, as is all
	// below.
	encoder *zstd.Encoder
	buffer  []byte
	// in and out are the bytes since the ratio was taken last; first is that of the
	// first time, 0 before.
	in, out int64
	first   float64
	worn    bool
}

// newPress makes one whose dictionary is the first of the entries.
func newPress(c *Cache, of []*Entry) (*press, error) {
	p := &press{cache: c}
	for _, e := range of {
		data := e.Plain()
		room := dictionaryBytes - len(p.dictionary)
		if room < minPacked {
			break
		}
		p.dictionary = append(p.dictionary, data[:min(len(data), room)]...)
	}
	var err error
	p.decoder, err = zstd.NewReader(nil,
		zstd.WithDecoderDictRaw(dictionaryID, p.dictionary),
		zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("decoder with a dictionary of %d bytes: %w", len(p.dictionary), err)
	}
	return p, nil
}

// dictionaryID is in every frame. Which dictionary it is, the entry knows.
const dictionaryID = 1

// pack compresses bytes. It returns nil where that is not worth it.
func (p *press) pack(data []byte) (*packed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.encoder == nil {
		encoder, err := zstd.NewWriter(nil,
			zstd.WithEncoderDictRaw(dictionaryID, p.dictionary), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, fmt.Errorf("encoder with a dictionary of %d bytes: %w", len(p.dictionary), err)
		}
		p.encoder = encoder
	}
	p.buffer = p.encoder.EncodeAll(data, p.buffer[:0])
	p.judgeLocked(len(data), len(p.buffer))
	if len(p.buffer)+packedOverhead > len(data)*3/4 {
		return nil, nil
	}
	return &packed{data: bytes.Clone(p.buffer), by: p}, nil
}

// judgeLocked finds out whether the objects have become different from those that the
// dictionary is made of.
func (p *press) judgeLocked(in, out int) {
	p.in += int64(in)
	p.out += int64(out)
	if p.in < worthBytes {
		return
	}
	ratio := float64(p.out) / float64(p.in)
	p.in, p.out = 0, 0
	if p.first == 0 {
		p.first = ratio
	}
	p.worn = p.worn || ratio > 1.25*p.first
}

// rest gives back what is needed only to compress. It tells whether another
// dictionary would be better from now on.
func (p *press) rest() (worn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.encoder != nil {
		_ = p.encoder.Close() // it has written nowhere
		p.encoder, p.buffer = nil, nil
	}
	return p.worn
}

// unpack appends what was compressed.
func (p *press) unpack(data, dst []byte) []byte {
	dst, err := p.decoder.DecodeAll(data, dst)
	if err != nil {
		panic("restore bytes that this process has compressed: " + err.Error()) // memory is not what it was
	}
	return dst
}

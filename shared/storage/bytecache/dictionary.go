package bytecache

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// compressed are the compressed bytes of an entry.
type compressed struct {
	data       []byte
	dictionary *dictionary
}

const (
	// minCompressBytes is the size in bytes below which an entry is not compressed.
	minCompressBytes = 512
	// compressedOverhead is the memory of a compressed entry, in bytes, beside its data.
	compressedOverhead = 48
	// maxDictionaryBytes bounds the content of a dictionary. One large object shows what is
	// common to its resource; of small objects there should be several. A larger dictionary
	// is slower and helps little.
	maxDictionaryBytes = 16 << 10
	// ratioBytes is the number of input bytes over which a compression ratio is measured.
	ratioBytes = 4 << 20
)

// dictionary compresses and decompresses the entries of one cache. Its content is a sample
// of them, since objects of the same resource have most in common.
type dictionary struct {
	cache   *Cache
	content []byte
	decoder *zstd.Decoder // safe for concurrent use

	mu sync.Mutex
	// encoder is nil while nothing is being compressed, because it is large. Guarded by mu,
	// as are all fields below.
	encoder *zstd.Encoder
	buffer  []byte
	// inBytes and outBytes are counted since the last measurement of the ratio.
	// initialRatio is the first measurement, 0 before.
	inBytes, outBytes int64
	initialRatio      float64
	outdated          bool
}

// newDictionary returns a dictionary made from the first entries of sample.
func newDictionary(c *Cache, sample []*Entry) (*dictionary, error) {
	d := &dictionary{cache: c}
	for _, e := range sample {
		data := e.Plain()
		room := maxDictionaryBytes - len(d.content)
		if room < minCompressBytes {
			break
		}
		d.content = append(d.content, data[:min(len(data), room)]...)
	}
	var err error
	d.decoder, err = zstd.NewReader(nil,
		zstd.WithDecoderDictRaw(dictionaryID, d.content),
		zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("decoder with a dictionary of %d bytes: %w", len(d.content), err)
	}
	return d, nil
}

// dictionaryID is the same in every frame: the entry knows its dictionary.
const dictionaryID = 1

// compress compresses data. It returns nil if the data is incompressible.
func (d *dictionary) compress(data []byte) (*compressed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.encoder == nil {
		encoder, err := zstd.NewWriter(nil,
			zstd.WithEncoderDictRaw(dictionaryID, d.content), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, fmt.Errorf("encoder with a dictionary of %d bytes: %w", len(d.content), err)
		}
		d.encoder = encoder
	}
	d.buffer = d.encoder.EncodeAll(data, d.buffer[:0])
	d.observeRatioLocked(len(data), len(d.buffer))
	if len(d.buffer)+compressedOverhead > len(data)*3/4 {
		return nil, nil
	}
	return &compressed{data: bytes.Clone(d.buffer), dictionary: d}, nil
}

// observeRatioLocked marks the dictionary as outdated when objects no longer resemble its
// content.
func (d *dictionary) observeRatioLocked(in, out int) {
	d.inBytes += int64(in)
	d.outBytes += int64(out)
	if d.inBytes < ratioBytes {
		return
	}
	ratio := float64(d.outBytes) / float64(d.inBytes)
	d.inBytes, d.outBytes = 0, 0
	if d.initialRatio == 0 {
		d.initialRatio = ratio
	}
	d.outdated = d.outdated || ratio > 1.25*d.initialRatio
}

// release frees the encoder. It reports whether a new dictionary should replace this one.
func (d *dictionary) release() (outdated bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.encoder != nil {
		_ = d.encoder.Close() // it has no writer
		d.encoder, d.buffer = nil, nil
	}
	return d.outdated
}

// decompress appends the decompressed data to dst.
func (d *dictionary) decompress(data, dst []byte) []byte {
	dst, err := d.decoder.DecodeAll(data, dst)
	if err != nil {
		panic("restore bytes that this process has compressed: " + err.Error()) // memory was corrupted
	}
	return dst
}

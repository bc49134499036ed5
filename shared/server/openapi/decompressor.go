package openapi

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// decompressor reads the content of a compressed document, and decompresses it as it is read: a
// client that does not read its answer keeps no document in memory.
type decompressor struct {
	compressed compressed
	// offset is where the next Read begins.
	offset int64
	// reader is at position at; nil before the first Read.
	reader *gzip.Reader
	at     int64
}

var errOffset = errors.New("seek before the beginning of an OpenAPI document")

// Seek implements [io.Seeker].
func (d *decompressor) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += d.offset
	case io.SeekEnd:
		offset += int64(d.compressed.size)
	}
	if offset < 0 {
		return 0, errOffset
	}
	d.offset = offset
	return offset, nil
}

// Read implements [io.Reader].
func (d *decompressor) Read(p []byte) (int, error) {
	if d.offset >= int64(d.compressed.size) {
		return 0, io.EOF
	}
	if d.reader == nil || d.at > d.offset {
		r, err := gzip.NewReader(bytes.NewReader(d.compressed.gzip))
		if err != nil {
			return 0, fmt.Errorf("decompress OpenAPI document: %w", err)
		}
		d.reader, d.at = r, 0
	}
	if skip := d.offset - d.at; skip > 0 {
		n, err := io.CopyN(io.Discard, d.reader, skip)
		d.at += n
		if err != nil {
			return 0, fmt.Errorf("decompress OpenAPI document: %w", err)
		}
	}
	n, err := d.reader.Read(p)
	d.at += int64(n)
	d.offset = d.at
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("decompress OpenAPI document: %w", err)
	}
	return n, err
}

package openapi

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// unpacked reads the content of a packed document, and uncompresses it as it is read: a
// client that does not read its answer keeps no document in memory.
type unpacked struct {
	packed packed
	// offset is where the next Read begins.
	offset int64
	// reader is at position at; nil before the first Read.
	reader *gzip.Reader
	at     int64
}

var errOffset = errors.New("seek before the beginning of an OpenAPI document")

// Seek implements [io.Seeker].
func (u *unpacked) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += u.offset
	case io.SeekEnd:
		offset += int64(u.packed.size)
	}
	if offset < 0 {
		return 0, errOffset
	}
	u.offset = offset
	return offset, nil
}

// Read implements [io.Reader].
func (u *unpacked) Read(p []byte) (int, error) {
	if u.offset >= int64(u.packed.size) {
		return 0, io.EOF
	}
	if u.reader == nil || u.at > u.offset {
		r, err := gzip.NewReader(bytes.NewReader(u.packed.gzip))
		if err != nil {
			return 0, fmt.Errorf("uncompress OpenAPI document: %w", err)
		}
		u.reader, u.at = r, 0
	}
	if skip := u.offset - u.at; skip > 0 {
		n, err := io.CopyN(io.Discard, u.reader, skip)
		u.at += n
		if err != nil {
			return 0, fmt.Errorf("uncompress OpenAPI document: %w", err)
		}
	}
	n, err := u.reader.Read(p)
	u.at += int64(n)
	u.offset = u.at
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("uncompress OpenAPI document: %w", err)
	}
	return n, err
}

package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// packed is a document compressed with gzip. OpenAPI documents shrink to about a
// tenth, and most clients take them as they are.
type packed struct {
	gzip []byte
	size int // of the content, in bytes
}

func pack(content []byte) (packed, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		return packed{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if err := w.Close(); err != nil {
		return packed{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	return packed{gzip: bytes.Clone(b.Bytes()), size: len(content)}, nil
}

func (p packed) unpack() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(p.gzip))
	if err != nil {
		return nil, fmt.Errorf("uncompress OpenAPI document: %w", err)
	}
	content := make([]byte, p.size)
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, fmt.Errorf("uncompress OpenAPI document: %w", err)
	}
	return content, nil
}

package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// compressed is a document compressed with gzip. OpenAPI documents shrink to about a tenth, and
// most clients accept the compressed form.
type compressed struct {
	gzip []byte
	size int // of the uncompressed content, in bytes
}

func compress(content []byte) (compressed, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		return compressed{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if err := w.Close(); err != nil {
		return compressed{}, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	return compressed{gzip: bytes.Clone(b.Bytes()), size: len(content)}, nil
}

func (p compressed) decompress() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(p.gzip))
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI document: %w", err)
	}
	content := make([]byte, p.size)
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, fmt.Errorf("decompress OpenAPI document: %w", err)
	}
	return content, nil
}

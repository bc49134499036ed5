package reads

import (
	"compress/gzip"
	"context"
	"net/http"
	"sync"
)

const (
	// chunk is the size of a write of a list.
	chunk = 64 << 10
	// gzipThreshold and gzipLevel are kube-apiserver's: shorter responses are not
	// compressed, and the level is the fastest.
	gzipThreshold = 128 << 10
	gzipLevel     = gzip.BestSpeed
	// maxPooled is the capacity beyond which a buffer is not returned to the pool. One
	// object may exceed a chunk.
	maxPooled = 4 * chunk
)

// buffer is a pooled buffer for a chunk.
type buffer struct{ bytes []byte }

var buffers = sync.Pool{New: func() any { return &buffer{bytes: make([]byte, 0, chunk+16<<10)} }}

func newBuffer() *buffer { return buffers.Get().(*buffer) }

func (b *buffer) free() {
	if cap(b.bytes) <= maxPooled {
		b.bytes = b.bytes[:0]
		buffers.Put(b)
	}
}

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzipLevel)
	if err != nil {
		panic(err) // the level is valid
	}
	return w
}}

var gzipEncoding = []string{"gzip"}

func header(w http.ResponseWriter, contentType []string, compressed bool) {
	h := w.Header()
	h["Content-Type"] = contentType
	if compressed {
		h["Content-Encoding"] = gzipEncoding
		h.Add("Vary", "Accept-Encoding")
	}
	w.WriteHeader(http.StatusOK)
}

// writeWhole sends a complete body. It ignores errors, which mean that the client has gone.
func writeWhole(w http.ResponseWriter, req *http.Request, contentType []string, body []byte) {
	if len(body) <= gzipThreshold || !acceptsGzip(req) {
		header(w, contentType, false)
		_, _ = w.Write(body)
		return
	}
	header(w, contentType, true)
	compressor := gzipWriters.Get().(*gzip.Writer)
	compressor.Reset(w)
	if _, err := compressor.Write(body); err == nil {
		_ = compressor.Close()
	}
	compressor.Reset(nil)
	gzipWriters.Put(compressor)
}

// stream writes a body in chunks.
type stream struct {
	ctx context.Context
	w   http.ResponseWriter
	*buffer
	contentType []string
	// compress says that the client accepts gzip. It is used if the body is long enough.
	compress   bool
	compressor *gzip.Writer
	// stitched says that the body is already compressed.
	stitched bool
	begun    bool
}

// spill writes the chunk if it is full. It fails when the client has gone.
func (s *stream) spill() error {
	limit := chunk
	if !s.begun && s.compress {
		limit = gzipThreshold + 1
	}
	if len(s.bytes) < limit {
		return nil
	}
	return s.flush()
}

func (s *stream) flush() error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if !s.begun {
		s.begun = true
		compressed := s.compress && len(s.bytes) > gzipThreshold
		header(s.w, s.contentType, compressed || s.stitched)
		if compressed {
			s.compressor = gzipWriters.Get().(*gzip.Writer)
			s.compressor.Reset(s.w)
		}
	}
	err := s.write(s.bytes)
	s.bytes = s.bytes[:0]
	return err
}

// write writes a part of the body after the chunks already written.
func (s *stream) write(data []byte) error {
	var err error
	if s.compressor != nil {
		_, err = s.compressor.Write(data)
	} else {
		_, err = s.w.Write(data)
	}
	return err
}

// put appends an immutable part of the body. It copies the part only if that is shorter
// than half a chunk.
func (s *stream) put(data []byte) error {
	if len(data) < chunk/2 {
		s.bytes = append(s.bytes, data...)
		return s.spill()
	}
	if err := s.flush(); err != nil {
		return err
	}
	return s.write(data)
}

// close writes the rest of the body.
func (s *stream) close() error {
	if err := s.flush(); err != nil || s.compressor == nil {
		return err
	}
	return s.compressor.Close()
}

// finish ends the response. It returns true if the response is complete, and false if
// nothing was written, so that the fallback can answer. It aborts a partial response, which
// must not look complete.
func (s *stream) finish(failed error) bool {
	switch {
	case failed == nil:
		return true
	case !s.begun:
		return false
	}
	panic(http.ErrAbortHandler)
}

func (s *stream) free() {
	if s.compressor != nil {
		s.compressor.Reset(nil)
		gzipWriters.Put(s.compressor)
		s.compressor = nil
	}
	s.buffer.free()
}

package reads

import (
	"compress/gzip"
	"context"
	"net/http"
	"sync"
)

const (
	// chunk is how much of a list is gathered before it is written.
	chunk = 64 << 10
	// gzipThreshold and gzipLevel are kube-apiserver's: what is not longer is not
	// compressed, and the level is the one that costs least.
	gzipThreshold = 128 << 10
	gzipLevel     = gzip.BestSpeed
	// maxPooled is the capacity beyond which a buffer is not kept: one object may be
	// larger than a chunk.
	maxPooled = 4 * chunk
)

// buffer is a chunk that is used again.
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

// writeWhole sends a body that is there as a whole. An error means that the client
// is gone, which is nobody's concern.
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
	// compress: the client takes gzip. It is used if the body turns out to be long.
	compress   bool
	compressor *gzip.Writer
	// stitched: what is written is compressed already.
	stitched bool
	begun    bool
}

// spill writes the chunk if it is full. It fails when the client is gone.
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

// write hands over a part of the body, behind the chunks that have been written.
func (s *stream) write(data []byte) error {
	var err error
	if s.compressor != nil {
		_, err = s.compressor.Write(data)
	} else {
		_, err = s.w.Write(data)
	}
	return err
}

// put appends a part of the body that does not change. What would fill half of a chunk is
// not copied into one.
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

// close writes what is left.
func (s *stream) close() error {
	if err := s.flush(); err != nil || s.compressor == nil {
		return err
	}
	return s.compressor.Close()
}

// finish says how an answer ended: true if it was given, false if nothing of it was,
// so that the fallback can. What has been sent in part must not look whole.
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

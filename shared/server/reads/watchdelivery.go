package reads

import (
	"cmp"
	"sync"
	"time"

	"triune.dev/shared/storage/bytecache"
)

const (
	// frameChunk is the approximate size of a write. It also bounds the memory for a client
	// that does not read.
	frameChunk = 16 << 10
	// pendingTimeout is how long a write may take before the changes after it are released.
	// If the client goes on reading, they are read again, maybe from history.
	pendingTimeout = time.Second
)

// directWriter is a response that can be written to without blocking, and while its handler
// sleeps; package h2 implements it.
type directWriter interface {
	// TryWrite accepts all of the pieces and returns true, or none of them and returns
	// false. They are sent by flush or earlier.
	TryWrite(pieces [][]byte) (flush interface{ Flush() }, ok bool)
}

// maxPushed is the number of changes up to which they are pushed; more are worth waking a
// goroutine.
const maxPushed = 8

// Push implements bytecache.Pusher. It does the same as deliver in another goroutine.
func (s *watchStream) Push(changes bytecache.Changes, batch *bytecache.Batch) bool {
	if len(changes.List) > maxPushed || s.skip > 0 {
		return false
	}
	pieces := batch.Pieces[:0]
	for _, c := range changes.List {
		event, err := s.classify(c)
		if err != nil {
			return false // deliver sends the error to the client
		}
		if event == noEvent {
			continue
		}
		frame, err := s.frames.change(c, s.media.format, event)
		if err != nil {
			return false
		}
		pieces = append(pieces, frame)
	}
	batch.Pieces = pieces
	if len(pieces) > 0 {
		flush, ok := s.direct.TryWrite(pieces)
		if !ok {
			return false
		}
		batch.Flush(flush)
		s.count.Add(float64(len(pieces)))
		for _, frame := range pieces {
			s.sizes.Observe(float64(len(frame)))
		}
	}
	s.reached = changes.Revision
	return true
}

// deliver writes the events of changes. It returns false if it had to release the changes
// before the end; it has then moved the cursor back to the position reached.
func (s *watchStream) deliver(changes bytecache.Changes) (whole bool, err error) {
	list, at := changes.List, min(s.skip, len(changes.List))
	for {
		part, err := s.gather(list, at)
		at = part.next
		if err != nil || at == len(list) {
			failed := s.writePart(part)
			if failed != nil || err != nil {
				return false, cmp.Or(failed, err)
			}
			if len(list) > 0 {
				s.skip = 0
			}
			s.reached = changes.Revision
			return true, nil
		}
		s.setProgress(list, at-1)
		if list, err = s.writeWithTimeout(part, list); err != nil {
			return false, err
		}
		if list == nil {
			if err := s.watch.Rewind(s.ctx, s.reached); err != nil {
				return false, sourceError{err}
			}
			return false, nil
		}
	}
}

// part is the content of one write.
type part struct {
	// bytes are one shared frame, or several frames in the borrowed buffer.
	bytes    []byte
	borrowed *frameBuffer
	events   int
	// next is the index of the first change after the part.
	next int
}

// gather collects frames for one write. The part is also valid if there is an error.
func (s *watchStream) gather(list []*bytecache.Change, at int) (p part, err error) {
	for p.next = at; p.next < len(list) && len(p.bytes) < frameChunk; p.next++ {
		c := list[p.next]
		event, err := s.classify(c)
		switch {
		case err != nil:
			return p, err
		case event == noEvent:
			continue
		}
		before := len(p.bytes)
		if s.media.table != nil {
			err = s.gatherRow(&p, c, event)
		} else {
			err = s.gatherFrame(&p, c, event)
		}
		if err != nil {
			return p, err
		}
		p.events++
		s.sizes.Observe(float64(len(p.bytes) - before))
	}
	return p, nil
}

// gatherFrame adds a cached frame. A single frame is not copied.
func (s *watchStream) gatherFrame(p *part, c *bytecache.Change, event int) error {
	frame, err := s.frames.change(c, s.media.format, event)
	switch {
	case err != nil:
		return err
	case p.events == 0:
		p.bytes = frame
		return nil
	case p.borrowed == nil:
		p.borrowed = newFrameBuffer()
		p.bytes = append(p.borrowed.bytes, p.bytes...)
	}
	p.bytes = append(p.bytes, frame...)
	p.borrowed.bytes = p.bytes
	return nil
}

// gatherRow adds a frame with a cached row.
func (s *watchStream) gatherRow(p *part, c *bytecache.Change, event int) error {
	if p.borrowed == nil {
		p.borrowed = newFrameBuffer()
		p.bytes = p.borrowed.bytes
	}
	var err error
	p.bytes, err = s.appendRow(p.bytes, watchTypes[event], shownEntry(c, event), c.Revision)
	p.borrowed.bytes = p.bytes
	return err
}

func (s *watchStream) writePart(p part) error {
	var err error
	if p.events > 0 {
		err = s.write(p.bytes, p.events)
	}
	if p.borrowed != nil {
		p.borrowed.free()
	}
	return err
}

// writeWithTimeout writes a part and returns the list, or nil if the write took too long: a
// client that does not read must not retain changes that the log has dropped.
func (s *watchStream) writeWithTimeout(p part, list []*bytecache.Change) ([]*bytecache.Change, error) {
	s.pending.Store(&list)
	release := time.AfterFunc(pendingTimeout, func() { s.pending.Store(nil) })
	defer release.Stop()
	if err := s.writePart(p); err != nil {
		return nil, err
	}
	if pending := s.pending.Swap(nil); pending != nil {
		return *pending, nil
	}
	return nil, nil
}

// setProgress records that all changes up to an index of the list are written.
func (s *watchStream) setProgress(list []*bytecache.Change, at int) {
	revision := list[at].Revision
	if list[at+1].Revision != revision {
		s.reached, s.skip = revision, 0
		return
	}
	first := at
	for first > 0 && list[first-1].Revision == revision {
		first--
	}
	s.reached, s.skip = revision-1, at-first+1
}

// frameBuffer is a pooled buffer for several frames.
type frameBuffer struct{ bytes []byte }

var frameBuffers = sync.Pool{New: func() any { return &frameBuffer{bytes: make([]byte, 0, frameChunk+8<<10)} }}

func newFrameBuffer() *frameBuffer { return frameBuffers.Get().(*frameBuffer) }

func (b *frameBuffer) free() {
	if cap(b.bytes) <= 8*frameChunk {
		b.bytes = b.bytes[:0]
		frameBuffers.Put(b)
	}
}

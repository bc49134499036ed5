package loopback

import "sync"

// bufferLimit is how many bytes a handler may write ahead of its client.
const bufferLimit = 64 << 10

// maxIdleBuffer is the capacity up to which an empty buffer is kept: an idle watch must not
// hold the memory of an earlier burst.
const maxIdleBuffer = 4 << 10

// pipe carries bytes from one writer to one reader. It buffers small writes. A write that does
// not fit is lent to the reader, and the writer waits until all of it was read.
type pipe struct {
	mu sync.Mutex
	// readable is signaled when the reader should look again, writable when the writer should.
	readable, writable sync.Cond

	// buffered[start:] is unread; it precedes loan.
	buffered []byte
	start    int
	loan     []byte
	// Reads return writeEnd after the last byte. Once the reader has gone away, reads and writes
	// return readEnd.
	writeEnd, readEnd error
}

func (p *pipe) init() {
	p.readable.L = &p.mu
	p.writable.L = &p.mu
}

// fits reports whether n more bytes can be buffered.
func (p *pipe) fits(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fitsLocked(n)
}

func (p *pipe) fitsLocked(n int) bool { return len(p.buffered)-p.start+n <= bufferLimit }

// write writes all of b or returns an error. It wakes the reader only if the writer has to
// wait; otherwise flush does.
func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readEnd != nil {
		return 0, p.readEnd
	}
	if p.fitsLocked(len(b)) {
		if p.start > 0 && len(p.buffered)+len(b) > cap(p.buffered) {
			p.buffered = append(p.buffered[:0], p.buffered[p.start:]...)
			p.start = 0
		}
		p.buffered = append(p.buffered, b...)
		return len(b), nil
	}
	p.loan = b
	p.readable.Signal()
	for len(p.loan) > 0 && p.readEnd == nil {
		p.writable.Wait()
	}
	n := len(b) - len(p.loan)
	p.loan = nil
	return n, p.readEnd
}

// flush wakes the reader.
func (p *pipe) flush() {
	p.mu.Lock()
	p.readable.Signal()
	p.mu.Unlock()
}

// closeWrite ends the writes; the reader gets err after the last byte.
func (p *pipe) closeWrite(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writeEnd == nil {
		p.writeEnd = err
	}
	p.readable.Signal()
}

// closeRead ends the reads; both sides get err. Only the first call has an effect.
func (p *pipe) closeRead(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readEnd == nil {
		p.readEnd = err
	}
	p.buffered, p.start = nil, 0
	p.readable.Broadcast()
	p.writable.Broadcast()
}

// read waits for at least one byte or the end.
func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.readEnd != nil {
			return 0, p.readEnd
		}
		n := copy(b, p.buffered[p.start:])
		if p.start += n; p.start == len(p.buffered) {
			p.start = 0
			p.buffered = p.buffered[:0]
			if cap(p.buffered) > maxIdleBuffer {
				p.buffered = nil
			}
			// The loan follows the buffer.
			if m := copy(b[n:], p.loan); m > 0 {
				n += m
				if p.loan = p.loan[m:]; len(p.loan) == 0 {
					p.writable.Signal()
				}
			}
		}
		if n > 0 || len(b) == 0 {
			return n, nil
		}
		if p.writeEnd != nil {
			return 0, p.writeEnd
		}
		p.readable.Wait()
	}
}

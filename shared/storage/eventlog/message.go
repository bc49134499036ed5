package eventlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"triune.dev/shared/storage/kv"
)

// messageType is the type of a message.
type messageType uint8

const (
	typeEvent messageType = iota + 1
	typeProgress
	typeReset
)

// message is the content of one JetStream message.
type message struct {
	Type        messageType
	Incarnation uint64
	ID          ID
	// InStream is the event or reset before this message in its stream. OnSubject is the event
	// before it on its subject (events only). ID.unpublished describes an ID that stands for no
	// message.
	InStream, OnSubject ID
	// Last marks the last event of its revision in this stream.
	Last bool
	// Event is the change; its Revision is that of the ID.
	Event kv.Event
	// Anchor is the relay's last anchor at the time of sending (progress only), or zero.
	Anchor anchor
}

// ends reports whether the message ends a complete revision.
func (m *message) ends() bool { return m.Type != typeEvent || m.Last }

// The layout, all integers unsigned varints unless a size is given:
//
//	version  1 byte: 2 for progress with an anchor, else 1
//	what     1 byte: type in the lower 4 bits, kind in the next 3, last in the highest
//	incarnation  8 bytes
//	epoch, revision, index
//	epoch, revision, index of the one before in the stream
//
// and for events
//
//	epoch, revision, index of the one before on the subject
//	key length, key
//	value length, value        unless deleted
//	previous length, previous  unless created
//
// and for progress with an anchor
//
//	revision of the anchor
//	nonce of the anchor  8 bytes
//
// and at the end
//
//	checksum  4 bytes: CRC-32C of all before it
//
// The previous bytes are there in modifications, too: an object that leaves a
// selector is DELETED with its previous state.
const (
	messageVersion  = 1
	anchoredVersion = 2
	lastFlag        = 0x80
	checksumBytes   = 4
	// messageOverhead bounds the size of an encoded event without key, value and previous
	// value, but with JetStream's headers.
	messageOverhead = 1 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendMessage appends the encoded message to b.
func appendMessage(b []byte, m *message) []byte {
	start := len(b)
	what := byte(m.Type)
	if m.Type == typeEvent {
		what |= byte(m.Event.Kind) << 4
	}
	if m.Last {
		what |= lastFlag
	}
	version := byte(messageVersion)
	if m.Anchor != (anchor{}) {
		version = anchoredVersion
	}
	b = append(b, version, what)
	b = binary.BigEndian.AppendUint64(b, m.Incarnation)
	b = appendID(appendID(b, m.ID), m.InStream)
	if m.Type == typeEvent {
		b = appendID(b, m.OnSubject)
		b = append(binary.AppendUvarint(b, uint64(len(m.Event.Key))), m.Event.Key...)
		if m.Event.Kind != kv.Deleted {
			b = append(binary.AppendUvarint(b, uint64(len(m.Event.Value))), m.Event.Value...)
		}
		if m.Event.Kind != kv.Created {
			b = append(binary.AppendUvarint(b, uint64(len(m.Event.Previous))), m.Event.Previous...)
		}
	}
	if version == anchoredVersion {
		b = binary.AppendUvarint(b, uint64(m.Anchor.Revision))
		b = binary.BigEndian.AppendUint64(b, m.Anchor.Nonce)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

func appendID(b []byte, id ID) []byte {
	b = binary.AppendUvarint(b, id.Epoch)
	b = binary.AppendUvarint(b, uint64(id.Revision))
	return binary.AppendUvarint(b, uint64(id.Index))
}

// errMalformed is wrapped by every error of decodeMessage.
var errMalformed = errors.New("not a message of the event log")

// decodeMessage decodes a message that appendMessage encoded. Value and Previous alias b, which
// must not change afterwards.
func decodeMessage(b []byte) (message, error) {
	var m message
	if len(b) < 2+8+checksumBytes || b[0] != messageVersion && b[0] != anchoredVersion {
		return m, fmt.Errorf("%w: version", errMalformed)
	}
	body, sum := b[:len(b)-checksumBytes], binary.BigEndian.Uint32(b[len(b)-checksumBytes:])
	if crc32.Checksum(body, castagnoli) != sum {
		return m, fmt.Errorf("%w: checksum", errMalformed)
	}
	d := decoder{rest: body[10:]}
	m.Type, m.Last = messageType(b[1]&0x0f), b[1]&lastFlag != 0
	kind := kv.Kind(b[1] >> 4 & 0x07)
	m.Incarnation = binary.BigEndian.Uint64(b[2:])
	m.ID, m.InStream = d.id(), d.id()
	switch m.Type {
	case typeProgress, typeReset:
		if kind != 0 || m.Last {
			return m, fmt.Errorf("%w: flags of an event", errMalformed)
		}
	case typeEvent:
		if kind < kv.Created || kind > kv.Deleted {
			return m, fmt.Errorf("%w: kind %d", errMalformed, kind)
		}
		m.OnSubject = d.id()
		m.Event = kv.Event{Kind: kind, Key: string(d.bytes()), Revision: m.ID.Revision}
		if kind != kv.Deleted {
			m.Event.Value = d.bytes()
		}
		if kind != kv.Created {
			m.Event.Previous = d.bytes()
		}
	default:
		return m, fmt.Errorf("%w: type %d", errMalformed, m.Type)
	}
	if b[0] == anchoredVersion {
		m.Anchor = anchor{Revision: int64(d.uint(math.MaxInt64)), Nonce: d.fixed()}
		if m.Type != typeProgress || m.Anchor.Revision == 0 || m.Anchor.Nonce == 0 {
			return m, fmt.Errorf("%w: anchor", errMalformed)
		}
	}
	if d.bad || len(d.rest) != 0 || m.ID.unpublished() || m.Incarnation == 0 {
		return m, fmt.Errorf("%w: layout", errMalformed)
	}
	return m, nil
}

// decoder consumes fields from the front of rest until one is malformed.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || v > limit {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) id() ID {
	return ID{Epoch: d.uint(math.MaxUint64), Revision: int64(d.uint(math.MaxInt64)), Index: uint32(d.uint(math.MaxUint32))}
}

func (d *decoder) fixed() uint64 {
	if len(d.rest) < 8 {
		d.bad, d.rest = true, nil
		return 0
	}
	v := binary.BigEndian.Uint64(d.rest)
	d.rest = d.rest[8:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uint(uint64(len(d.rest)))
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

package eventlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"triune.dev/shared/storage/kv"
)

var messages = map[string]message{
	"creation": {
		Type: typeEvent, Incarnation: 7, ID: ID{3, 10, 0}, InStream: ID{2, 9, 4}, OnSubject: ID{0, 5, 0}, Last: true,
		Event: kv.Event{Kind: kv.Created, Key: "/registry/pods/a/b", Revision: 10, Value: []byte("value")},
	},
	"modification": {
		Type: typeEvent, Incarnation: math.MaxUint64, ID: ID{math.MaxUint64, math.MaxInt64, math.MaxUint32}, InStream: ID{3, 10, 0}, OnSubject: ID{3, 10, 0},
		Event: kv.Event{Kind: kv.Modified, Key: "k", Revision: math.MaxInt64, Value: []byte{0}, Previous: []byte("value")},
	},
	"deletion": {
		Type: typeEvent, Incarnation: 1, ID: ID{3, 11, 2}, InStream: ID{3, 11, 1}, OnSubject: ID{3, 10, 0}, Last: true,
		Event: kv.Event{Kind: kv.Deleted, Key: "/registry/pods/a/b", Revision: 11, Previous: []byte("value")},
	},
	"empty values": {
		Type: typeEvent, Incarnation: 1, ID: ID{3, 11, 2}, InStream: ID{3, 11, 1}, OnSubject: ID{3, 10, 0},
		Event: kv.Event{Kind: kv.Modified, Key: "", Revision: 11, Value: []byte{}, Previous: []byte{}},
	},
	"progress": {Type: typeProgress, Incarnation: 1, ID: ID{3, 12, 0}, InStream: ID{3, 11, 2}},
	"anchored progress": {
		Type: typeProgress, Incarnation: 1, ID: ID{3, 12, 0}, InStream: ID{3, 11, 2}, Anchor: anchor{Revision: 10, Nonce: 99},
	},
	"reset": {Type: typeReset, Incarnation: 1, ID: ID{3, 12, 0}},
}

func TestMessagesSurviveTheirEncoding(t *testing.T) {
	for name, m := range messages {
		t.Run(name, func(t *testing.T) {
			encoded := appendMessage([]byte("before"), &m)[len("before"):]
			got, err := decodeMessage(encoded)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever happens to a message on its way, it is refused or says the same.
func TestCorruptMessagesAreRefused(t *testing.T) {
	for name, m := range messages {
		t.Run(name, func(t *testing.T) {
			encoded := appendMessage(nil, &m)
			for i := range encoded {
				for bit := range 8 {
					corrupt := bytes.Clone(encoded)
					corrupt[i] ^= 1 << bit
					if _, err := decodeMessage(corrupt); !errors.Is(err, errMalformed) {
						t.Fatalf("bit %d of byte %d: %v", bit, i, err)
					}
				}
				if _, err := decodeMessage(encoded[:i]); !errors.Is(err, errMalformed) {
					t.Fatalf("cut at %d: %v", i, err)
				}
			}
			if _, err := decodeMessage(append(bytes.Clone(encoded), 0)); !errors.Is(err, errMalformed) {
				t.Fatalf("a byte more: %v", err)
			}
		})
	}
}

// A relay's own key, value and previous value are the only large parts.
func TestOverheadOfAMessageIsBounded(t *testing.T) {
	m := messages["modification"]
	m.InStream, m.OnSubject = m.ID, m.ID
	size := len(appendMessage(nil, &m)) - len(m.Event.Key) - len(m.Event.Value) - len(m.Event.Previous)
	f := &feed{
		name: "triune-extensions", sequence: math.MaxUint64, token: math.MaxUint64,
		sequencer: &sequencer{epoch: math.MaxUint64}, outbox: outbox{limits: pipelined},
	}
	for _, header := range []nats.Header{f.fence(), f.batchHeader(math.MaxUint64, 1000, 1000)} {
		for name, values := range header {
			size += len(name) + len(values[0]) + len(": \r\n")
		}
	}
	if size > messageOverhead {
		t.Errorf("%d bytes beside the content, want at most %d", size, messageOverhead)
	}
}

func TestMessagesAllocateNoBytes(t *testing.T) {
	m := messages["modification"]
	m.Event.Value = make([]byte, 1<<20)
	encoded := appendMessage(nil, &m)
	if n := testing.AllocsPerRun(100, func() { _, _ = decodeMessage(encoded) }); n > 1 {
		t.Errorf("%v allocations, want at most the key", n)
	}
	buffer := make([]byte, 0, 2<<20)
	if n := testing.AllocsPerRun(100, func() { buffer = appendMessage(buffer[:0], &m) }); n > 0 {
		t.Errorf("%v allocations to encode", n)
	}
}

func FuzzDecodeMessage(f *testing.F) {
	for _, m := range messages {
		f.Add(appendMessage(nil, &m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			return
		}
		again, err := decodeMessage(appendMessage(nil, &m))
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Errorf("(-first +second):\n%s", diff)
		}
	})
}

// FuzzSealedMessage repeats FuzzDecodeMessage with correct checksums, as in messages of a
// client that may publish: each message is refused, or decoded completely and without a copy.
func FuzzSealedMessage(f *testing.F) {
	for _, m := range messages {
		encoded := appendMessage(nil, &m)
		f.Add(encoded[:len(encoded)-checksumBytes])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sealed := binary.BigEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
		m, err := decodeMessage(sealed)
		if err != nil {
			if !errors.Is(err, errMalformed) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		for name, part := range map[string][]byte{"value": m.Event.Value, "previous value": m.Event.Previous} {
			if len(part) > 0 && !isPart(part, sealed) {
				t.Errorf("the %s is a copy", name)
			}
		}
		encoded := appendMessage(nil, &m)
		// Integers may have been written with more bytes than they need.
		if len(encoded) > len(sealed) || len(encoded) == len(sealed) && !bytes.Equal(encoded, sealed) {
			t.Errorf("%x\nis encoded again as\n%x", sealed, encoded)
		}
		again, err := decodeMessage(encoded)
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Errorf("(-first +second):\n%s", diff)
		}
	})
}

// isPart reports whether part shares the memory of whole.
func isPart(part, whole []byte) bool {
	for i := range whole {
		if &whole[i] == &part[0] {
			return len(whole)-i >= len(part)
		}
	}
	return false
}

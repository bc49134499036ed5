package core

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// undecodable returns a stored pod with damaged managed fields.
func undecodable(t *testing.T, codec runtime.Codec) []byte {
	stored, err := runtime.Encode(codec, ordinaryPod())
	if err != nil {
		t.Fatal(err)
	}
	return changeRaw(t, stored, func(raw []byte) []byte {
		all, err := parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		all[0].content = append(bytes.Clone(all[0].content), 0x8a, 1, 1, 0xff) // field 17
		return join(all)
	})
}

// damaged returns stored bytes with random changes.
func (c *fieldsCheck) damaged(stored []byte) []byte {
	stored = bytes.Clone(stored)
	for range 1 + c.random.Intn(3) {
		at := c.random.Intn(len(stored))
		switch c.random.Intn(3) {
		case 0:
			stored[at] = byte(c.random.Uint32())
		case 1:
			stored[at]++
		case 2:
			stored = append(stored[:at:at], stored[c.random.Intn(at+1):]...)
		}
	}
	return stored
}

// rebuilt returns a stored object with missing, empty, repeated and reordered fields.
func (c *fieldsCheck) rebuilt(t *testing.T, stored []byte) []byte {
	return changeRaw(t, stored, func(raw []byte) []byte { return c.rebuiltMessage(raw, 3) })
}

// changeRaw changes the message in its envelope.
func changeRaw(t *testing.T, stored []byte, change func([]byte) []byte) []byte {
	t.Helper()
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(stored[len("k8s\x00"):]); err != nil {
		t.Fatal(err)
	}
	unknown.Raw = change(unknown.Raw)
	out, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), out...)
}

// wire is a field of a message.
type wire struct {
	tag, value uint64
	content    []byte
}

var errOtherWire = errors.New("not a message of varints and bytes")

func parse(message []byte) (all []wire, err error) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		value, m := binary.Uvarint(message[max(n, 0):])
		if n <= 0 || m <= 0 || tag>>3 == 0 || tag>>3 > 100 {
			return nil, errOtherWire
		}
		message = message[n+m:]
		w := wire{tag: tag, value: value}
		if tag&7 == 2 && value <= uint64(len(message)) {
			w.content, message = message[:value], message[value:]
		} else if tag&7 != 0 {
			return nil, errOtherWire
		}
		all = append(all, w)
	}
	return all, nil
}

// join is the reverse of parse.
func join(all []wire) (message []byte) {
	for _, w := range all {
		message = binary.AppendUvarint(message, w.tag)
		if w.tag&7 == 0 {
			message = binary.AppendUvarint(message, w.value)
			continue
		}
		message = binary.AppendUvarint(message, uint64(len(w.content)))
		message = append(message, w.content...)
	}
	return message
}

func (c *fieldsCheck) rebuiltMessage(message []byte, depth int) []byte {
	all, err := parse(message)
	if err != nil || depth == 0 {
		return message
	}
	var out []wire
	for _, w := range all {
		if w.tag&7 == 2 && c.random.Intn(4) > 0 {
			w.content = c.rebuiltMessage(w.content, depth-1)
		}
		switch c.random.Intn(16) {
		case 0: // missing
			continue
		case 1, 2: // empty
			w.value, w.content = 0, nil
		case 3: // repeated, empty or not
			out = append(out, w)
			if c.random.Intn(2) == 0 {
				w.value, w.content = 0, nil
			}
		case 4: // another number
			w.value = c.random.Uint64()
		}
		out = append(out, w)
	}
	if c.random.Intn(4) == 0 {
		c.random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return join(out)
}

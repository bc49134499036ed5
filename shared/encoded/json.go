package encoded

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// What is here reads JSON as encoding/json writes it from maps: no white space, keys
// in order. Of other JSON it says that it does not know, and the object is decoded.

const jsonVersionKey = `"resourceVersion":"`

// skipString returns the offset after the string that begins at at.
func skipString(data []byte, at int) (end int, ok bool) {
	if at >= len(data) || data[at] != '"' {
		return 0, false
	}
	for at++; ; {
		next := bytes.IndexByte(data[at:], '"')
		if next < 0 {
			return 0, false
		}
		end := at + next
		slashes := 0
		for i := end - 1; i >= at && data[i] == '\\'; i-- {
			slashes++
		}
		if slashes%2 == 0 {
			return end + 1, true
		}
		at = end + 1
	}
}

// skipValue returns the offset after the value that begins at at.
func skipValue(data []byte, at int) (end int, ok bool) {
	if at >= len(data) {
		return 0, false
	}
	switch data[at] {
	case '"':
		return skipString(data, at)
	case '{', '[':
		depth := 0
		for at < len(data) {
			switch data[at] {
			case '"':
				if at, ok = skipString(data, at); !ok {
					return 0, false
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return at + 1, true
				}
			}
			at++
		}
		return 0, false
	}
	for start := at; at < len(data); at++ {
		switch data[at] {
		case ',', '}', ']':
			return at, at > start
		case ' ', '\n', '\t', '\r', '"':
			return 0, false
		}
	}
	return 0, false
}

// eachMember calls yield with the key, as it is written, and the place of each
// member of the object that begins at at, until it returns false.
func eachMember(data []byte, at int, yield func(key []byte, keyAt, from, to int) bool) bool {
	if at >= len(data) || data[at] != '{' {
		return false
	}
	at++
	if at < len(data) && data[at] == '}' {
		return true
	}
	for {
		keyEnd, ok := skipString(data, at)
		if !ok || keyEnd >= len(data) || data[keyEnd] != ':' {
			return false
		}
		end, ok := skipValue(data, keyEnd+1)
		if !ok || end >= len(data) {
			return false
		}
		if !yield(data[at+1:keyEnd-1], at, keyEnd+1, end) {
			return true
		}
		switch data[end] {
		case '}':
			return true
		case ',':
			at = end + 1
		default:
			return false
		}
	}
}

// jsonMember returns the place of a member's value.
func jsonMember(data []byte, at int, name string) (from, to int, ok bool) {
	whole := eachMember(data, at, func(key []byte, _, f, t int) bool {
		if string(key) == name {
			from, to, ok = f, t, true
		}
		return !ok
	})
	return from, to, ok && whole
}

// findJSONPlace returns where in a stored object the resourceVersion belongs:
// before the first key of the metadata that comes after it.
func findJSONPlace(stored []byte) (at int, ok bool) {
	from, _, found := jsonMember(stored, 0, "metadata")
	if !found {
		return 0, false
	}
	whole := eachMember(stored, from, func(key []byte, keyAt, _, _ int) bool {
		if string(key) >= "resourceVersion" {
			at, ok = keyAt, string(key) != "resourceVersion"
			return false
		}
		return true
	})
	return at, ok && whole
}

// jsonMetadataAlone returns a stored object with nothing but its type and its metadata.
func jsonMetadataAlone(stored []byte) (alone []byte, ok bool) {
	alone = append(make([]byte, 0, len(stored)), '{')
	members := 0
	whole := eachMember(stored, 0, func(key []byte, keyAt, _, to int) bool {
		switch string(key) {
		case "apiVersion", "kind", "metadata":
			if members++; members > 1 {
				alone = append(alone, ',')
			}
			alone = append(alone, stored[keyAt:to]...)
		}
		return members < 3
	})
	return append(alone, "}\n"...), whole && members == 3
}

func appendJSONSpliced(dst, stored []byte, at int, revision int64) []byte {
	dst = append(dst, stored[:at]...)
	dst = append(dst, jsonVersionKey...)
	dst = strconv.AppendInt(dst, revision, 10)
	dst = append(dst, `",`...)
	return append(dst, stored[at:]...)
}

// splicedJSONSize is what the resourceVersion adds.
func splicedJSONSize(revision int64) int { return len(jsonVersionKey) + digitsOf(revision) + len(`",`) }

// plainString returns the content of a JSON string that has no escapes.
func plainString(value []byte) ([]byte, bool) {
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

// eachJSONLabel calls yield for the labels of a stored object. It returns false where it
// must be decoded to tell.
func eachJSONLabel(stored []byte, yield func(key, value []byte)) (ok bool) {
	from, _, found := jsonMember(stored, 0, "metadata")
	if !found {
		return false
	}
	at, plain := 0, true
	if !eachMember(stored, from, func(key []byte, _, f, _ int) bool {
		if plain = bytes.IndexByte(key, '\\') < 0; string(key) == "labels" {
			at = f
		}
		return plain
	}) || !plain {
		return false
	}
	if at == 0 {
		return true // it has none
	}
	return eachMember(stored, at, func(_ []byte, keyAt, f, t int) bool {
		name, plainName := plainString(stored[keyAt : f-1])
		value, plainValue := plainString(stored[f:t])
		if plain = plainName && plainValue; plain {
			yield(name, value)
		}
		return plain
	}) && plain
}

// mark says that the stored bytes are what is sent, but for the resourceVersion: of
// JSON, where that belongs and whether a newline is at the end; of protobuf, how many
// bytes the message has with it. So the size is known without the stored bytes.
type mark uint32

func jsonMark(at int, newline bool) mark {
	m := mark(at) << 1
	if newline {
		m |= 1
	}
	return m
}

func (m mark) at() int { return int(m >> 1) }

// newlines is how many there are at the end.
func (m mark) newlines() int { return int(m & 1) }

func protobufMark(size int) mark { return mark(size) }

func (m mark) size() int { return int(m) }

// maxMark: no rendered object is as short as a mark.
const maxMark = 8

func (m mark) bytes() []byte { return binary.LittleEndian.AppendUint32(nil, uint32(m)) }

func readMark(data []byte) mark { return mark(binary.LittleEndian.Uint32(data)) }

func isMark(data []byte) bool { return len(data) <= maxMark }

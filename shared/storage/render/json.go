package render

import (
	"bytes"
	"strconv"
)

// These functions read JSON as encoding/json writes it from maps: no white space, keys in
// order. They refuse other JSON, which is then decoded.

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

// eachMember calls yield with the encoded key and the offsets of each member of the object
// that begins at at, until yield returns false.
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

// jsonMember returns the offsets of a member's value.
func jsonMember(data []byte, at int, name string) (from, to int, ok bool) {
	whole := eachMember(data, at, func(key []byte, _, f, t int) bool {
		if string(key) == name {
			from, to, ok = f, t, true
		}
		return !ok
	})
	return from, to, ok && whole
}

// findJSONSplicePoint returns the offset in a stored object at which the resourceVersion
// belongs: before the first key of the metadata that sorts after it.
func findJSONSplicePoint(stored []byte) (at int, ok bool) {
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

// jsonMetadataOnly returns a stored object reduced to its type and metadata.
func jsonMetadataOnly(stored []byte) (alone []byte, ok bool) {
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

func appendJSON(dst, stored []byte, at int, revision int64) []byte {
	dst = append(dst, stored[:at]...)
	dst = append(dst, jsonVersionKey...)
	dst = strconv.AppendInt(dst, revision, 10)
	dst = append(dst, `",`...)
	return append(dst, stored[at:]...)
}

// jsonVersionSize returns the size of the spliced resourceVersion.
func jsonVersionSize(revision int64) int {
	return len(jsonVersionKey) + digitCount(revision) + len(`",`)
}

// plainString returns the content of a JSON string without escapes.
func plainString(value []byte) ([]byte, bool) {
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

// eachJSONLabel calls yield for each label of a stored object. It returns false if the
// object must be decoded.
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
		return true // there are no labels
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

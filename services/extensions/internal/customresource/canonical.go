package customresource

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// reader reads canonical JSON, as encoding/json writes a decoded value: no white space,
// members sorted by key, and one form of each string and number. It refuses anything else,
// and some rare forms although encoding/json writes them.
type reader struct {
	text string
	pos  int
	// depth is the number of open objects and lists.
	depth int
}

// maxDepth is far below the limit of decoding, and above that of real objects.
const maxDepth = 200

// peek returns the next byte, 0 at the end.
func (r *reader) peek() byte {
	if r.pos < len(r.text) {
		return r.text[r.pos]
	}
	return 0
}

func (r *reader) take(literal string) bool {
	if !strings.HasPrefix(r.text[r.pos:], literal) {
		return false
	}
	r.pos += len(literal)
	return true
}

func (r *reader) boolean() bool { return r.take("true") || r.take("false") }

// unescaped holds the ASCII characters that are not escaped in a string.
var unescaped = func() (as [utf8.RuneSelf]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		as[c] = !strings.ContainsRune(`"\<>&`, c)
	}
	return as
}()

// str reads a string and returns the text between its quotes and whether it has escapes.
func (r *reader) str() (raw string, escaped, ok bool) {
	if r.peek() != '"' {
		return "", false, false
	}
	text := r.text[r.pos+1:]
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c >= utf8.RuneSelf:
			char, size := utf8.DecodeRuneInString(text[i:])
			if char == utf8.RuneError && size == 1 || char == '\u2028' || char == '\u2029' {
				return "", false, false
			}
			i += size
		case unescaped[c]:
			i++
		case c == '"':
			r.pos += i + 2
			return text[:i], escaped, true
		case c == '\\':
			_, size := unescape(text[i:])
			if size == 0 {
				return "", false, false
			}
			escaped = true
			i += size
		default:
			return "", false, false
		}
	}
	return "", false, false
}

// anyString reads a string, which may be empty.
func (r *reader) anyString() bool {
	_, _, ok := r.str()
	return ok
}

// unescape returns the character of an escape and the length of the escape, which is 0 if
// encoding/json does not write the character so.
func unescape(text string) (char rune, size int) {
	if len(text) < 2 {
		return 0, 0
	}
	switch text[1] {
	case '"', '\\':
		return rune(text[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		if len(text) >= 6 {
			return unescapeHex(text[2:6])
		}
	}
	return 0, 0
}

func unescapeHex(digits string) (char rune, size int) {
	switch digits {
	case "2028":
		return '\u2028', 6
	case "2029":
		return '\u2029', 6
	case "003c":
		return '<', 6
	case "003e":
		return '>', 6
	case "0026":
		return '&', 6
	}
	// Control characters without a shorter form.
	var low rune
	switch c := digits[3]; {
	case '0' <= c && c <= '9':
		low = rune(c - '0')
	case 'a' <= c && c <= 'f':
		low = rune(c-'a') + 10
	default:
		return 0, 0
	}
	switch digits[:3] {
	case "001":
		return 0x10 + low, 6
	case "000":
		if !strings.ContainsRune("\b\f\n\r\t", low) {
			return low, 6
		}
	}
	return 0, 0
}

// compare compares two keys, with or without escapes, by their characters. In UTF-8 that is
// the order of the bytes.
func compare(a string, aEscaped bool, b string, bEscaped bool) int {
	switch {
	case aEscaped || bEscaped:
	case a == b:
		return 0
	case a < b: // strings.Compare would make the reader escape to the heap
		return -1
	default:
		return 1
	}
	for a != "" && b != "" {
		var x, y rune
		x, a = character(a, aEscaped)
		y, b = character(b, bEscaped)
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}

// character returns the first character of a key, and the rest.
func character(key string, escaped bool) (rune, string) {
	if escaped && key[0] == '\\' {
		char, size := unescape(key)
		return char, key[size:]
	}
	char, size := utf8.DecodeRuneInString(key)
	return char, key[size:]
}

// number reads an integer that fits into an int64, or a fraction with as many digits as it
// needs. It refuses exponents.
func (r *reader) number() (whole int64, isWhole, ok bool) {
	begin, fraction := r.pos, false
	for r.pos < len(r.text) {
		c := r.text[r.pos]
		if c == '.' {
			fraction = true
		} else if c != '-' && (c < '0' || c > '9') {
			break
		}
		r.pos++
	}
	const longest = len("-0.0000012345678901234567")
	text := r.text[begin:r.pos]
	if len(text) > longest {
		return 0, false, false
	}
	var room [longest + 16]byte
	if !fraction {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, true, err == nil && string(strconv.AppendInt(room[:0], n, 10)) == text
	}
	f, err := strconv.ParseFloat(text, 64)
	// encoding/json writes smaller and larger numbers with an exponent.
	if abs := math.Abs(f); err != nil || abs < 1e-6 || abs >= 1e21 {
		return 0, false, false
	}
	return 0, false, string(strconv.AppendFloat(room[:0], f, 'f', -1, 64)) == text
}

// integer reads a number and reports whether it is an integer.
func (r *reader) integer() (int64, bool) {
	n, whole, ok := r.number()
	return n, whole && ok
}

// enter reads the bracket that begins an object or a list.
func (r *reader) enter(bracket string) bool {
	r.depth++
	return r.depth <= maxDepth && r.take(bracket)
}

// openObject iterates over the members of an object. After next returns true, the caller
// reads the value of the member.
type openObject struct {
	*reader
	// key is the key of the member, with its escapes.
	key     string
	escaped bool // the key has escapes
	count   int
	failed  bool
}

func (r *reader) object() openObject { return openObject{reader: r, failed: !r.enter("{")} }

func (o *openObject) next() bool {
	if o.failed || o.peek() == '}' {
		return false
	}
	o.failed = true // until the key is read
	if o.count > 0 && !o.take(",") {
		return false
	}
	key, escaped, ok := o.str()
	if !ok || !o.take(":") || o.count > 0 && compare(o.key, o.escaped, key, escaped) >= 0 {
		return false
	}
	o.key, o.escaped, o.failed = key, escaped, false
	o.count++
	return true
}

// end reads the closing bracket and reports whether the object was canonical.
func (o *openObject) end() bool {
	o.depth--
	return !o.failed && o.take("}")
}

// openList iterates over the elements of a list, like openObject.
type openList struct {
	*reader
	count  int
	failed bool
}

func (r *reader) list() openList { return openList{reader: r, failed: !r.enter("[")} }

func (l *openList) next() bool {
	if l.failed || l.peek() == ']' {
		return false
	}
	if l.count > 0 && !l.take(",") {
		l.failed = true
		return false
	}
	l.count++
	return true
}

func (l *openList) end() bool {
	l.depth--
	return !l.failed && l.take("]")
}

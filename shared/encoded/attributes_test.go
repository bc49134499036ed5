package encoded

import (
	"strconv"
	"strings"
	"testing"
)

// Labels are anybody's to choose: those that are shared are few and short.
func TestInternedStringsAreBounded(t *testing.T) {
	var i interned
	for n := range 3 * maxInterned {
		i.of([]byte(strconv.Itoa(n)))
		i.of([]byte(strings.Repeat("x", maxInternedString) + strconv.Itoa(n)))
		if len(i.copies) > maxInterned {
			t.Fatalf("%d strings are held", len(i.copies))
		}
	}
	for s := range i.copies {
		if len(s) > maxInternedString {
			t.Fatalf("%q is held", s)
		}
	}
}

package render

import (
	"strconv"
	"strings"
	"testing"
)

// Clients choose labels freely, but the frequent ones are few and short.
func TestInternedStringsAreBounded(t *testing.T) {
	var i interner
	for n := range 3 * maxInterned {
		i.intern([]byte(strconv.Itoa(n)))
		i.intern([]byte(strings.Repeat("x", maxInternedString) + strconv.Itoa(n)))
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

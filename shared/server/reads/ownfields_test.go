package reads

import (
	"strings"
	"testing"
)

// An empty field differs from a missing one.
func TestPackedFields(t *testing.T) {
	all := map[string]string{"metadata.name": "a", "spec.color": "", "spec.long": strings.Repeat("x", 300), "spec.ü": "ß"}
	packed := packedFields(packFields(all))
	for name, want := range all {
		if got := packed.Get(name); got != want || !packed.Has(name) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"", "spec", "metadata.namespace", "x"} {
		if packed.Has(name) || packed.Get(name) != "" {
			t.Errorf("%q is %q, want nothing", name, packed.Get(name))
		}
	}
	if packedFields(packFields(nil)).Has("") {
		t.Error("the packed form of no fields has a field")
	}
}

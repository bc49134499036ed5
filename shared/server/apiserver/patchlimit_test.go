package apiserver

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// TestCopiesOfPatchesAreBounded: a patch that copies its own copies grows exponentially with
// its length.
func TestCopiesOfPatchesAreBounded(t *testing.T) {
	before := atomic.SwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0)
	defer atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, before)
	operations := []string{`{"op":"add","path":"/x","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`}
	for i := range 8 {
		operations = append(operations, fmt.Sprintf(`{"op":"copy","from":"/x","path":"/x/c%d"}`, i))
	}
	patch, err := jsonpatch.DecodePatch([]byte("[" + strings.Join(operations, ",") + "]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		bytes   int64
		allowed bool
	}{{0, true}, {1 << 20, true}, {100_000, false}, {0, false}, {1 << 20, false}} { // the lowest limit applies
		limitPatchCopies(test.bytes)
		if _, err := patch.Apply([]byte("{}")); (err == nil) != test.allowed {
			t.Errorf("with a limit of %d: %v", test.bytes, err)
		}
	}
}

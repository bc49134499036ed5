package remote

import (
	"fmt"
	"testing"
)

// Requests for a Service are distributed in turn, and the memory for unused Services is bounded.
func TestStartsAreBounded(t *testing.T) {
	e := &endpoints{}
	for i := range 3 * maxStarts {
		service := fmt.Sprint("namespace/service", i)
		first := e.nextStart(service)
		if next := e.nextStart(service); next != (first+1)&0x7fffffff {
			t.Fatalf("turn %d after %d", next, first)
		}
		if n := len(e.starts); n > maxStarts {
			t.Fatalf("the turns of %d Services are known", n)
		}
	}
}

package reads

import (
	"fmt"
	"strings"
	"testing"
)

// Nobody fills the memory of a resource, or keeps others out of it, with headers that
// nobody else sends.
func TestChoicesAreBounded(t *testing.T) {
	var c choiceCache
	for i := range 10 * maxChoices {
		c.put(fmt.Sprint("application/json;x=", i), choice{})
		c.put(strings.Repeat("x", maxAcceptHeader)+fmt.Sprint(i), choice{})
		if n := len(c.known); n > maxChoices {
			t.Fatalf("%d headers are remembered", n)
		}
	}
	size := 0
	for header := range c.known {
		size += len(header)
	}
	if size > maxChoices*maxAcceptHeader {
		t.Errorf("headers of %d bytes are remembered", size)
	}
	c.put("application/json", choice{served: true})
	if got, ok := c.get("application/json"); !ok || !got.served {
		t.Error("what is sent again is not remembered")
	}
}

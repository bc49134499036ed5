package reads

import (
	"fmt"
	"strings"
	"testing"
)

// TestChoicesAreBounded: a client that sends ever new headers does not fill the cache, nor
// keep the headers of others out of it.
func TestChoicesAreBounded(t *testing.T) {
	var c choiceCache
	for i := range 10 * maxChoices {
		c.put(fmt.Sprint("application/json;x=", i), choice{})
		c.put(strings.Repeat("x", maxAcceptHeader)+fmt.Sprint(i), choice{})
		if n := len(c.known); n > maxChoices {
			t.Fatalf("%d headers are cached", n)
		}
	}
	size := 0
	for header := range c.known {
		size += len(header)
	}
	if size > maxChoices*maxAcceptHeader {
		t.Errorf("headers of %d bytes are cached", size)
	}
	c.put("application/json", choice{served: true})
	if got, ok := c.get("application/json"); !ok || !got.served {
		t.Error("a new header is not cached")
	}
}

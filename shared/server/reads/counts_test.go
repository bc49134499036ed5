package reads

import (
	"strconv"
	"testing"
)

// A client that never reads to the last page must not fill the memory.
func TestCountsAreBounded(t *testing.T) {
	var c counts
	for i := range 3 * maxCounts {
		key := countKey{revision: int64(i), prefix: "/registry/pods/", from: strconv.Itoa(i)}
		c.remember(key, int64(i))
		if count, ok := c.get(key); !ok || count != int64(i) {
			t.Fatalf("%d, %t for what was remembered last", count, ok)
		}
		if n := len(c.known); n > maxCounts {
			t.Fatalf("%d counts are remembered", n)
		}
	}
}

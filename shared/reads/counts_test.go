package reads

import (
	"strconv"
	"testing"
)

// Whoever reads in pages, and never to the end, leaves little behind.
func TestCountsAreBounded(t *testing.T) {
	var c counts
	for i := range 3 * maxCounts {
		key := countKey{revision: int64(i), prefix: "/registry/pods/", from: strconv.Itoa(i)}
		c.remember(key, int64(i))
		if count, ok := c.of(key); !ok || count != int64(i) {
			t.Fatalf("%d, %t for what was remembered last", count, ok)
		}
		if n := len(c.known); n > maxCounts {
			t.Fatalf("%d counts are remembered", n)
		}
	}
}

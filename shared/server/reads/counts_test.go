package reads

import (
	"strconv"
	"testing"
)

// TestCountsAreBounded, even if clients never read to the last page.
func TestCountsAreBounded(t *testing.T) {
	var c counts
	for i := range 3 * maxCounts {
		key := countKey{revision: int64(i), prefix: "/registry/pods/", from: strconv.Itoa(i)}
		c.put(key, int64(i))
		if count, ok := c.get(key); !ok || count != int64(i) {
			t.Fatalf("the last count is %d, %t", count, ok)
		}
		if n := len(c.counts); n > maxCounts {
			t.Fatalf("%d counts are cached", n)
		}
	}
}

package bytecache

import (
	"testing"
	"time"
)

// TestIndexesOfClientsNameNoSeries: only declared indexes may name series of metrics.
func TestIndexesOfClientsNameNoSeries(t *testing.T) {
	c := &Cache{options: Options{Indexes: []Term{{Field: true, Key: "spec.nodeName"}}}}
	for _, tc := range []struct {
		term Term
		want bool
	}{
		{Term{Field: true, Key: "spec.nodeName", Values: []string{"n"}}, true},
		{Term{Key: "spec.nodeName"}, false},
		{Term{Key: "of-a-client"}, false},
	} {
		if got := c.Declares(tc.term); got != tc.want {
			t.Errorf("%v is declared: %t", tc.term, got)
		}
	}
}

func TestReadsAreCounted(t *testing.T) {
	var r Reads
	r.CountList("", 10, 3)
	r.CountList("f:spec.nodeName", 2, 2)
	r.CountConsistent(true)
	r.CountConsistent(false)
	r.CountInitialEvents(7)
	r.CountWait(0)
	r.CountWait(time.Minute)
	got := r.Counts()
	if got.Lists[""] != (ListCount{1, 10}) || got.Lists["f:spec.nodeName"] != (ListCount{1, 2}) || got.Returned != 5 ||
		got.Consistent != 1 || got.Inconsistent != 1 || got.InitialEvents != 7 ||
		got.Waits.Buckets[0] != 1 || got.Waits.Count != 2 || got.Waits.Seconds != 60 {
		t.Errorf("counts are %+v", got)
	}
}

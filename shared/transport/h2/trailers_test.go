package h2

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A server behind this one, such as a Pod, may announce as many trailers as fit into a header.
func TestManyTrailersAreCheap(t *testing.T) {
	var names []string
	for i := range 200_000 {
		names = append(names, fmt.Sprintf("X-%d", i))
	}
	took := make(chan time.Duration, 1)
	s := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Trailer"] = []string{strings.Join(names, ","), "x-1, X-1"}
		began := time.Now()
		w.WriteHeader(http.StatusOK)
		took <- time.Since(began)
		w.Header().Set("X-1", "one")
	}))
	res, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if took := <-took; took > 2*time.Second {
		t.Errorf("%d names took %v", len(names), took)
	}
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	if got := res.Trailer["X-1"]; len(got) != 1 || got[0] != "one" || len(res.Trailer) != len(names) {
		t.Errorf("%d trailers, X-1: %q", len(res.Trailer), got)
	}
}

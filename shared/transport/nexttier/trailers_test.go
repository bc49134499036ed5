package nexttier

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A Pod that is reached by proxy may announce as many trailers as fit into a header.
func TestManyTrailersAreCheap(t *testing.T) {
	p, err := New(testConfig("https://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.shutdown()
	res := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Trailer: http.Header{}}
	for i := range 100_000 {
		res.Trailer[fmt.Sprintf("X-%d", i)] = []string{"x"}
	}
	w := httptest.NewRecorder()
	began := time.Now()
	p.relay(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), res, exchange{kind: short, slot: &slot{}})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%d trailers took %v", len(res.Trailer), took)
	}
	if got := w.Header()["X-7"]; len(got) != 1 || got[0] != "x" {
		t.Errorf("X-7: %q", got)
	}
}

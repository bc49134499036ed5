package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/cluster"
)

// openWatch is an open watch and the events that it has received.
type openWatch struct {
	names chan string // of the objects of its events; closed when it has ended
}

// watch opens a watch that begins now, and returns when the response has begun.
func (s *site) watch(t *testing.T, tier cluster.Tier, path string) openWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.c.ReplicaURL(tier, 0)+path+"?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("watch %s of %s: %s", path, tier, res.Status)
	}
	w := openWatch{names: make(chan string, 1000)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(w.names)
		for decoder := json.NewDecoder(res.Body); ; {
			var event struct{ Object metav1.PartialObjectMetadata }
			if decoder.Decode(&event) != nil {
				return
			}
			w.names <- event.Object.Name
		}
	})
	t.Cleanup(func() { cancel(); reading.Wait(); res.Body.Close() })
	return w
}

// wantEnd expects the watch to end, in any way.
func (w openWatch) wantEnd(t *testing.T) {
	t.Helper()
	w.until(t, "its end", func(_ string, open bool) bool { return !open })
}

// wantEvent expects an event about an object while the watch is open.
func (w openWatch) wantEvent(t *testing.T, name string) {
	t.Helper()
	w.until(t, name, func(got string, open bool) bool { return open && got == name })
}

func (w openWatch) until(t *testing.T, what string, check func(name string, open bool) bool) {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case name, open := <-w.names:
			if check(name, open) {
				return
			}
			if !open {
				t.Errorf("the watch has ended before %s", what)
				return
			}
		case <-limit:
			t.Errorf("the watch has not come to %s within %v", what, patience)
			return
		}
	}
}

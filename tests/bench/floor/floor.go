// Package floor is the baseline of all measurements: Go's own HTTPS server with constant
// bodies. It does not authenticate, store or decode anything, so its cost is that of the
// network, TLS and HTTP/2.
package floor

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// maxBody bounds a body. The largest LIST of the benchmarks is far smaller.
const maxBody = 1 << 30

// Handler serves
//
//	GET /readyz          nothing, 200
//	any /bytes/{size}    that many bytes, with the status of the query (200)
//	GET /watch           a watch of what is posted to /event
//	any /event           one event of the size in the query, to every watch
//
// It may be used by any number of goroutines.
func Handler() http.Handler {
	s := &server{bodies: map[int][]byte{}, watches: map[chan []byte]struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/bytes/{size}", s.bytes)
	mux.HandleFunc("/watch", s.watch)
	mux.HandleFunc("/event", s.event)
	return mux
}

type server struct {
	mu       sync.Mutex
	bodies   map[int][]byte
	watches  map[chan []byte]struct{}
	revision int
}

func (s *server) bytes(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.Atoi(r.PathValue("size"))
	if err != nil || size < 0 || size > maxBody {
		http.Error(w, "no such size", http.StatusBadRequest)
		return
	}
	status := http.StatusOK
	if text := r.URL.Query().Get("status"); text != "" {
		if status, err = strconv.Atoi(text); err != nil || status < 200 || status > 599 {
			http.Error(w, "no such status", http.StatusBadRequest)
			return
		}
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client is gone
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(s.body(size))
}

// body returns the same bytes at every call.
func (s *server) body(size int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.bodies[size]
	if !ok {
		b = bytes.Repeat([]byte{'x'}, size)
		s.bodies[size] = b
	}
	return b
}

// backlog bounds the events that a watch may be behind.
const backlog = 1024

func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, backlog)
	s.mu.Lock()
	s.watches[events] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watches, events)
		s.mu.Unlock()
	}()
	flush := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		if err := flush.Flush(); err != nil {
			return
		}
		select {
		case event := <-events:
			if _, err := w.Write(event); err != nil {
				return
			}
			for len(events) > 0 { // available events go into one flush
				if _, err := w.Write(<-events); err != nil {
					return
				}
			}
		case <-r.Context().Done():
			return
		}
	}
}

func (s *server) event(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.Atoi(r.URL.Query().Get("size"))
	if err != nil || size < 0 || size > maxBody {
		http.Error(w, "no such size", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.revision++
	meta := fmt.Sprintf(`"metadata":{"resourceVersion":"%d"}`, s.revision)
	frame := fmt.Appendf(nil, `{"type":"MODIFIED","object":{%s,"x":"`, meta)
	const end = "\"}}\n"
	frame = append(frame, bytes.Repeat([]byte{'x'}, max(0, size-len(frame)-len(end)))...)
	frame = append(frame, end...)
	for events := range s.watches {
		events <- frame
	}
	s.mu.Unlock()
	fmt.Fprintf(w, "{%s}", meta)
}

package h2

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

type tryWriter interface {
	TryWrite(pieces [][]byte) (flush interface{ Flush() }, ok bool)
}

// TryWrite sends data that fits in order, whoever flushes it. If the client does not read, it refuses
// a write as a whole without blocking.
func TestTryWrite(t *testing.T) {
	const size = 3000
	taken, drained := make(chan int, 1), make(chan struct{})
	s := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		direct := w.(tryWriter)
		if _, ok := direct.TryWrite([][]byte{{1}}); ok {
			t.Error("before the header is sent")
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		n := 0
		for ; n < 3000; n++ {
			piece := bytes.Repeat([]byte{byte(n)}, size)
			flush, ok := direct.TryWrite([][]byte{piece[:size/3], piece[size/3:]})
			if !ok {
				break
			}
			flush.Flush()
		}
		taken <- n
		within(t, drained, "the client reads")
		if _, err := w.Write([]byte("end")); err != nil {
			t.Error(err)
		}
		if _, ok := direct.TryWrite([][]byte{{1}}); ok {
			t.Error("before what was written has been flushed")
		}
	}))
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n := within(t, taken, "the connection is full")
	if n == 0 || n == 3000 {
		t.Fatalf("%d were taken of a client that does not read", n)
	}
	body := make([]byte, n*size)
	if _, err := io.ReadFull(resp.Body, body); err != nil {
		t.Fatal(err)
	}
	close(drained)
	for i := range n {
		if want := bytes.Repeat([]byte{byte(i)}, size); !bytes.Equal(body[i*size:(i+1)*size], want) {
			t.Fatalf("piece %d is not what was written", i)
		}
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || string(rest) != "end" {
		t.Errorf("%q, %v", rest, err)
	}
}

// TryWrite fails after the client has gone.
func TestTryWriteAfterTheEnd(t *testing.T) {
	refused := make(chan bool, 1)
	s := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		_, ok := w.(tryWriter).TryWrite([][]byte{[]byte("late")})
		refused <- !ok
	}))
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if !within(t, refused, "the handler sees that the client has gone") {
		t.Error("it was written to")
	}
}

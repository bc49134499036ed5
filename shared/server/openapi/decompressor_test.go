package openapi

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

// TestDecompressorReads: a decompressor reads the content in pieces of any size, from any
// offset.
func TestDecompressorReads(t *testing.T) {
	content := []byte(strings.Repeat("some of it repeats, 0123456789\n", 3000))
	p, err := compress(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(&decompressor{compressed: p}, content); err != nil {
		t.Error(err)
	}
}

// TestRanges: a client that asks for a part of a document gets it (RFC 9110, 14).
func TestRanges(t *testing.T) {
	documents := newTier(t).Documents()
	plain := body(t, get(documents, autoscaling))
	for header, want := range map[string][]byte{
		"bytes=0-9":    plain[:10],
		"bytes=100-":   plain[100:],
		"bytes=-50":    plain[len(plain)-50:],
		"bytes=40-140": plain[40:141],
	} {
		res := get(documents, autoscaling, "Range", header)
		if got := body(t, res); res.StatusCode != http.StatusPartialContent || !bytes.Equal(got, want) {
			t.Errorf("%s: %d, %d bytes, want %d", header, res.StatusCode, len(got), len(want))
		}
	}
}

// stalled is the answer to a client that does not read: its first Write blocks until resume
// is closed.
type stalled struct {
	http.ResponseWriter
	begun  *sync.WaitGroup
	once   sync.Once
	resume chan struct{}
}

func (s *stalled) Write(p []byte) (int, error) {
	s.once.Do(func() {
		s.begun.Done()
		<-s.resume
	})
	return len(p), nil
}

// TestAnswersThatAreNotReadAreSmall: an unread answer does not hold a copy of the document.
func TestAnswersThatAreNotReadAreSmall(t *testing.T) {
	const answers, most = 50, 200 << 10
	documents := NewDocuments()
	documents.SetV3("large", Source{Tag: "a", Build: func() ([]byte, error) {
		return []byte(`{"large": "` + strings.Repeat("of some words, ", 200_000) + `"}`), nil
	}})
	path := PathV3 + "/large"
	size := len(body(t, get(documents, path)))
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var begun, ended sync.WaitGroup
	resume := make(chan struct{})
	begun.Add(answers)
	for range answers {
		ended.Go(func() {
			w := &stalled{ResponseWriter: httptest.NewRecorder(), begun: &begun, resume: resume}
			documents.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		})
	}
	begun.Wait()
	retained := (heap() - before) / answers
	close(resume)
	ended.Wait()
	if retained > most {
		t.Errorf("an answer of %d bytes that is not read retains %d", size, retained)
	}
	runtime.KeepAlive(documents)
}

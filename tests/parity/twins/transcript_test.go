package twins

import (
	"bytes"
	"io"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
)

// transcript is the body of a watch as it grows.
type transcript struct {
	mediaType string

	mu    sync.Mutex
	body  []byte // guarded by mu, as is ended
	ended bool
	// grown is signalled after every change of body.
	grown chan struct{}
}

func (t *transcript) read(from io.Reader) {
	chunk := make([]byte, 64<<10)
	for {
		n, err := from.Read(chunk)
		t.mu.Lock()
		t.body = append(t.body, chunk[:n]...)
		t.ended = err != nil
		t.mu.Unlock()
		select {
		case t.grown <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// over reports whether the server has ended the watch.
func (t *transcript) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// bytes returns the events without the periodic bookmarks, whose times differ between the
// servers. It includes the bookmark that ends the initial events.
func (t *transcript) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	unordered := strings.Contains(t.mediaType, "cbor")
	if !unordered && !bytes.Contains(t.body, bookmark) {
		return bytes.Clone(t.body)
	}
	var framer runtime.Framer = jsonserializer.Framer
	switch {
	case strings.Contains(t.mediaType, "protobuf"):
		framer = protobuf.LengthDelimitedFramer
	case unordered:
		framer = cbor.NewFramer()
	}
	var out []byte
	from := framer.NewFrameReader(io.NopCloser(bytes.NewReader(t.body)))
	for {
		frame := make([]byte, len(t.body))
		n, err := from.Read(frame)
		if err != nil { // the rest is not whole yet
			return out
		}
		frame = frame[:n]
		if unordered {
			if err := ordered(&frame); err != nil {
				return append(out, err.Error()...)
			}
		}
		if !bytes.Contains(frame, bookmark) || bytes.Contains(frame, []byte(metav1.InitialEventsAnnotationKey)) {
			out = append(out, frame...)
		}
	}
}

var bookmark = []byte(watch.Bookmark)

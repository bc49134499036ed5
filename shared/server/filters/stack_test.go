package filters

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"
)

// here returns roughly the address of the top of the stack. It is good for differences
// within one goroutine whose stack does not move in between.
//
//go:noinline
func here() uintptr {
	var mark byte
	return uintptr(unsafe.Pointer(&mark))
}

// reserve has a frame larger than the stack that the chain needs. Its argument keeps the
// compiler from removing the frame.
//
//go:noinline
func reserve(i int) byte {
	var frame [17 << 10]byte
	return frame[i]
}

// TestLongRequestsKeepLittleOfTheStack bounds the stack that the chain occupies while a
// watch lasts. An idle watch in triune fits into a stack of 8 KiB, of which this is a fifth;
// the rest belongs to the server, a tier in front, and the handler of the watch.
func TestLongRequestsKeepLittleOfTheStack(t *testing.T) {
	const limit = 2048
	for _, tc := range []struct{ name, path, query string }{
		{"a watch", "/api/v1/namespaces/default/pods", "watch=1"},
		{"a connection that is upgraded", onePod + "/exec", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var depth uintptr
			handlers := bare(t, true, func(http.ResponseWriter, *http.Request) { depth = here() })
			// The stack must not move meanwhile: it grows now, and no collection shrinks it.
			reserve(0)
			runtime.GC()
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			top := here()
			handlers.Edge.ServeHTTP(&sink{header: http.Header{}}, received(t.Context(), tc.path, tc.query))
			if depth == 0 {
				t.Fatal("the request was not served")
			}
			t.Logf("%d bytes", top-depth)
			if used := top - depth; used > limit {
				t.Errorf("%d bytes of stack are between the socket and the handler, more than %d", used, limit)
			}
		})
	}
}

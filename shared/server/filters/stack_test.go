package filters

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"
)

// here is about where the stack of its caller ends. The number is good for differences
// within one goroutine whose stack does not move in between.
//
//go:noinline
func here() uintptr {
	var mark byte
	return uintptr(unsafe.Pointer(&mark))
}

// reserve has a frame that is larger than what the chain needs of the stack. Its argument
// keeps the compiler from seeing that nothing is done with it.
//
//go:noinline
func reserve(i int) byte {
	var frame [17 << 10]byte
	return frame[i]
}

// TestLongRequestsKeepLittleOfTheStack: what the chain leaves on the stack for as long
// as a watch lasts. An idle watch in triune fits into a stack of 8 KiB, of which this is
// a fifth; the rest is the server's, a tier in front, and what serves the watch.
func TestLongRequestsKeepLittleOfTheStack(t *testing.T) {
	const limit = 2048
	for _, tc := range []struct{ name, path, query string }{
		{"a watch", "/api/v1/namespaces/default/pods", "watch=1"},
		{"a connection that is upgraded", onePod + "/exec", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var depth uintptr
			handlers := bare(t, true, func(http.ResponseWriter, *http.Request) { depth = here() })
			// A stack moves when it grows, so it grows before, and when it is collected.
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

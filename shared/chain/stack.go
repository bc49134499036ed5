package chain

import "net/http"

// withStack gives the goroutine of a short request the stack that its handlers will
// need, in one step and while there is nothing on it. The timeout filter starts a
// goroutine for each of them, and a stack that doubles deep inside the chain is copied
// each time, frame by frame.
func withStack(next http.Handler) http.Handler { return &withRoom{next} }

type withRoom struct{ next http.Handler }

// ServeHTTP implements http.Handler.
func (s *withRoom) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	reserve(0)
	s.next.ServeHTTP(w, req)
}

// stackSize is a little more than half of the stack that is wanted, in bytes:
// stacks are powers of two.
const stackSize = 17 << 10

// reserve has a frame of stackSize. Its argument keeps the compiler from seeing
// that nothing is done with it.
//
//go:noinline
func reserve(i int) byte {
	var frame [stackSize]byte
	return frame[i]
}

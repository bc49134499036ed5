// Package stack grows the stack of a goroutine once instead of step by step.
package stack

// reserved is the stack size in bytes that a write needs, plus a margin. The runtime then
// allocates 32 KiB.
const reserved = 20 << 10

// Reserve grows the stack of the calling goroutine to the size that a write needs. The
// runtime doubles a stack by copying it and adjusting every frame, so Reserve is called
// early, when there are few frames. It does nothing if the stack is large enough.
//
// k8s.io/apiserver runs writes in goroutines of their own, which start with a small stack.
func Reserve() { _ = frame(0) }

// frame has a large stack frame. Its argument keeps the compiler from eliminating it.
//
//go:noinline
func frame(i int) byte {
	var space [reserved]byte
	return space[i]
}

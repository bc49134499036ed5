// Package stack spares goroutines the growing of their stacks bit by bit.
package stack

// reserved is the size in bytes of what a write needs of the stack, and a little more: from
// it on the runtime gives 32 KiB.
const reserved = 20 << 10

// Reserve grows the stack of its goroutine at once to what a write needs. A stack that has
// to grow is copied to one of twice the size, and each frame on it is looked through; so
// it is called early, where there are few. Where the stack is large enough it does nothing.
//
// k8s.io/apiserver runs what a write does in a goroutine of its own, which begins with a
// small stack.
func Reserve() { _ = frame(0) }

// frame has a large frame. Its argument keeps the compiler from seeing that nothing is done
// with it.
//
//go:noinline
func frame(i int) byte {
	var space [reserved]byte
	return space[i]
}

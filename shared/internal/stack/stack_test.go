package stack

import (
	"runtime/debug"
	"testing"
	"unsafe"
)

// place is where the frame of its caller is. Numbers of one goroutine differ by more than
// a frame if its stack has been copied in between.
//
//go:noinline
func place() uintptr {
	var mark byte
	return uintptr(unsafe.Pointer(&mark))
}

// deep needs about as much of the stack as a write, in steps.
//
//go:noinline
func deep(left int) byte {
	var step [512]byte
	step[left%len(step)] = byte(left)
	if left <= len(step) {
		return step[0]
	}
	return step[1] + deep(left-len(step))
}

// TestReserve: a stack that has been grown at once is not copied when what it is for needs
// it, and one that has not been is.
func TestReserve(t *testing.T) {
	// Collecting garbage makes stacks smaller again.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, tc := range map[string]struct{ reserve, moves bool }{"reserved": {true, false}, "as it is": {false, true}} {
		t.Run(name, func(t *testing.T) {
			moved := make(chan bool)
			go func() {
				if tc.reserve {
					Reserve()
				}
				before := place()
				deep(reserved - 4<<10)
				moved <- place() != before
			}()
			if got := <-moved; got != tc.moves {
				t.Errorf("the stack was copied: %t, want %t", got, tc.moves)
			}
		})
	}
}

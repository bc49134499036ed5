package stack

import (
	"runtime/debug"
	"testing"
	"unsafe"
)

// frameAddress returns the address of its frame. Two results in the same function differ if the
// stack was copied between the calls.
//
//go:noinline
func frameAddress() uintptr {
	var mark byte
	return uintptr(unsafe.Pointer(&mark))
}

// useStack uses about as much stack as a write, in steps.
//
//go:noinline
func useStack(left int) byte {
	var step [512]byte
	step[left%len(step)] = byte(left)
	if left <= len(step) {
		return step[0]
	}
	return step[1] + useStack(left-len(step))
}

// TestReserve checks that a reserved stack is not copied when it is used, and that another
// one is.
func TestReserve(t *testing.T) {
	// The garbage collector shrinks stacks.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, tc := range map[string]struct{ reserve, moves bool }{"reserved": {true, false}, "as it is": {false, true}} {
		t.Run(name, func(t *testing.T) {
			moved := make(chan bool)
			go func() {
				if tc.reserve {
					Reserve()
				}
				before := frameAddress()
				useStack(reserved - 4<<10)
				moved <- frameAddress() != before
			}()
			if got := <-moved; got != tc.moves {
				t.Errorf("the stack was copied: %t, want %t", got, tc.moves)
			}
		})
	}
}

package accounting

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// CPU is the processor time, user and system, that all threads of a process have
// used, those that have ended included. Unlike /proc/<pid>/stat, which counts in
// steps of 10 ms, the process's clock counts nanoseconds.
func CPU(pid int) (time.Duration, error) {
	// The clock of a process: see MAKE_PROCESS_CPUCLOCK in the kernel, which
	// clock_getcpuclockid(3) uses. 2 is CPUCLOCK_SCHED.
	clock := int32(^pid)<<3 | 2
	var at syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&at)), 0); errno != 0 {
		return 0, fmt.Errorf("read the clock of process %d: %w", pid, errno)
	}
	return time.Duration(at.Nano()), nil
}

// OwnCPU is [CPU] of the calling process.
func OwnCPU() (time.Duration, error) { return CPU(os.Getpid()) }

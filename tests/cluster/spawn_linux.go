package cluster

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// ownGroup makes a program the leader of a process group, and lets the kernel kill it when
// the thread that started it ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// The parent of a program is a thread, not a process (PR_SET_PDEATHSIG in prctl(2)), and Go
// may end threads at any time. So all programs are started by one thread that lives as long
// as the test binary. If that panics or is killed, its programs are killed, too.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func spawn(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

package cluster

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// ownGroup makes a program the leader of a process group, and has the kernel
// kill it when the thread that started it ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// The parent of a program is a thread, not a process (PR_SET_PDEATHSIG in
// prctl(2)), and Go ends threads as it likes. So all programs are started on
// one thread that lives as long as the test binary, even if that one panics or
// is killed: then nothing of what it started survives it.
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

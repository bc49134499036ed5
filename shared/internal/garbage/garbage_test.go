package garbage

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	for _, tc := range []struct {
		name            string
		live, allocated uint64
		since           time.Duration
		want            int
	}{
		{"idle", 32 << 20, 15 << 20, time.Second, 100},
		{"busy", 32 << 20, 16 << 20, time.Second, 300},
		{"busy for a moment", 32 << 20, 1 << 20, time.Second / 16, 300},
		{"nothing live", 0, 16 << 20, time.Second, 400},
		{"little live", 1 << 20, 16 << 20, time.Second, 400},
		{"as much live", 64 << 20, 1 << 30, time.Second, 200},
		{"more live", 100 << 20, 1 << 30, time.Second, 150},
		{"much live", 1 << 30, 1 << 30, time.Second, 100},
		{"no time", 64 << 20, 0, 0, 200},
	} {
		if got := percentOf(tc.live, tc.allocated, tc.since); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// child is the variable that makes the test a process that measures; "tuned" tunes it.
const child = "GARBAGE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(child) {
	case "":
		os.Exit(m.Run())
	case "tuned":
		Tune()
	}
	fmt.Println(measure())
}

var kept, dropped []byte

// measure tells whether there may be more garbage than usual while much of it is made beside
// 16 MiB that are kept, and afterwards.
func measure() (busy, idle bool) {
	kept = make([]byte, 16<<20)
	busy = becomes(true, func() {
		for range 1 << 11 {
			dropped = make([]byte, 1<<16)
		}
	})
	idle = becomes(false, func() {
		time.Sleep(10 * time.Millisecond)
		runtime.GC()
	})
	return busy, idle
}

// becomes does something until there may be more garbage than usual, or not more, as is wanted.
// It returns whether there may be after thirty times at the latest.
func becomes(wanted bool, do func()) (more bool) {
	for range 30 {
		do()
		percent := debug.SetGCPercent(usual)
		debug.SetGCPercent(percent)
		if more = percent > usual; more == wanted {
			break
		}
	}
	return more
}

// TestTune: there may be more garbage in a busy process with little in memory, as much as ever
// in an idle one, and what it was told in one that was told.
func TestTune(t *testing.T) {
	for _, tc := range []struct {
		env        []string
		busy, idle bool
	}{
		{[]string{child + "=plain"}, false, false},
		{[]string{child + "=tuned"}, true, false},
		{[]string{child + "=tuned", "GOGC=100"}, false, false},
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), tc.env...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.TrimSpace(string(out)), fmt.Sprint(tc.busy, tc.idle); got != want {
			t.Errorf("%v: more garbage than usual while it is busy and afterwards: %s, want %s", tc.env, got, want)
		}
	}
}

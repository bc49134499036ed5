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
		live uint64
		want int
	}{
		{0, 400}, {1 << 20, 400}, {32 << 20, 200}, {64 << 20, 150}, {100 << 20, 125}, {1 << 30, 100},
	} {
		if got := percentOf(tc.live); got != tc.want {
			t.Errorf("%d bytes live: %d, want %d", tc.live, got, tc.want)
		}
	}
}

func TestWorthwhile(t *testing.T) {
	for _, tc := range []struct {
		live, held uint64
		want       bool
	}{
		{0, 16 << 20, false},
		{0, 17 << 20, true},
		{60 << 20, 76 << 20, false},
		{60 << 20, 77 << 20, true},
		{1 << 30, 5 << 28, false},
		{1 << 30, 6 << 28, true},
		{2 << 20, 1 << 20, false},
	} {
		if got := worthReturning(tc.live, tc.held); got != tc.want {
			t.Errorf("%d bytes live of %d: %v, want %v", tc.live, tc.held, got, tc.want)
		}
	}
}

// child is the environment variable that makes the test binary measure itself; the value
// "tuned" also tunes it.
const child = "GARBAGE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(child) {
	case "":
		os.Exit(m.Run())
	case "tuned":
		_, fixed := os.LookupEnv("GOGC")
		start(fixed, 5*time.Millisecond)
	}
	fmt.Println(measure())
}

var retained, dropped []byte

// measure reports whether the percentage is raised in a busy process with a live heap of 16
// MiB, and in an idle one, and whether unused memory beside 64 MiB is returned.
func measure() (busy, idle, returned bool) {
	retained = make([]byte, 16<<20)
	busy = becomes(true, func() {
		for range 1 << 11 {
			dropped = make([]byte, 1<<16)
		}
	})
	idle = becomes(false, func() {
		time.Sleep(10 * time.Millisecond)
		runtime.GC()
	})
	retained = make([]byte, 64<<20)
	// A process without processor time for a while is not busy, so try several times.
	for range 5 {
		for range 1 << 12 {
			dropped = make([]byte, 1<<16)
		}
		for range 100 {
			if read(objects)+read(unused)+read(free) < uint64(len(retained))+minReturned {
				return busy, idle, true
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return busy, idle, false
}

// becomes calls do until the percentage is raised, or not, as wanted; at most thirty times.
// It returns whether it is raised.
func becomes(wanted bool, do func()) (more bool) {
	for range 30 {
		do()
		percent := debug.SetGCPercent(defaultPercent)
		debug.SetGCPercent(percent)
		if more = percent > defaultPercent; more == wanted {
			break
		}
	}
	return more
}

// TestTune checks that the percentage is raised in a busy process with a small heap, not in
// an idle one, nor if GOGC is set; and that unused memory is returned.
func TestTune(t *testing.T) {
	for _, tc := range []struct {
		env                  []string
		busy, idle, returned bool
	}{
		{[]string{child + "=plain"}, false, false, false},
		{[]string{child + "=tuned"}, true, false, true},
		{[]string{child + "=tuned", "GOGC=100"}, false, false, true},
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), tc.env...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.TrimSpace(string(out)), fmt.Sprint(tc.busy, tc.idle, tc.returned); got != want {
			t.Errorf("%v: percentage raised while busy, while idle, and unused memory returned: %s, want %s", tc.env, got, want)
		}
	}
}

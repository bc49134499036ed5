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
		{0, 400}, {1 << 20, 400}, {32 << 20, 300}, {64 << 20, 200}, {100 << 20, 150}, {1 << 30, 100},
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
		if got := worthwhile(tc.live, tc.held); got != tc.want {
			t.Errorf("%d bytes live of %d: %v, want %v", tc.live, tc.held, got, tc.want)
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
		_, told := os.LookupEnv("GOGC")
		start(told, 5*time.Millisecond)
	}
	fmt.Println(measure())
}

var kept, dropped []byte

// measure tells whether there may be more garbage than usual while much of it is made beside
// 16 MiB that are kept, and afterwards; and whether what it has left beside 64 MiB is given back.
func measure() (busy, idle, back bool) {
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
	kept = make([]byte, 64<<20)
	// A process that gets no processor for a while is not busy, and leaves what it has.
	for range 5 {
		for range 1 << 12 {
			dropped = make([]byte, 1<<16)
		}
		for range 100 {
			if read(objects)+read(unused)+read(free) < uint64(len(kept))+little {
				return busy, idle, true
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return busy, idle, false
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
// in an idle one, and what it was told in one that was told. What it has left is given back.
func TestTune(t *testing.T) {
	for _, tc := range []struct {
		env              []string
		busy, idle, back bool
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
		if got, want := strings.TrimSpace(string(out)), fmt.Sprint(tc.busy, tc.idle, tc.back); got != want {
			t.Errorf("%v: more garbage than usual while it is busy and afterwards, and what it left given back: %s, want %s", tc.env, got, want)
		}
	}
}

package accounting

import (
	"os"
	"testing"
	"time"
)

func TestParseStatus(t *testing.T) {
	got, err := parseStatus([]byte("Name:\tx\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\nRssAnon:\t  100 kB\n"))
	if want := (Memory{Resident: 200 << 10, Anonymous: 100 << 10, Peak: 300 << 10}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	// A zombie has no memory lines, which must not be read as zero bytes.
	if got, err := parseStatus([]byte("Name:\tx\nState:\tZ (zombie)\n")); err == nil {
		t.Errorf("a zombie: got %+v", got)
	}
}

func TestParseAgeCountsFieldsFromBehindTheName(t *testing.T) {
	stat := "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 1 0 2500 1000 10"
	got, err := parseAge([]byte(stat), []byte("100.00 150.00\n"))
	if want := 75 * time.Second; err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestOwnProcess(t *testing.T) {
	before, err := OwnCPU()
	if err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); time.Since(begin) < 5*time.Millisecond; {
	}
	after, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("the clock stood still: %v, then %v", before, after)
	}
	m, err := MemoryOf(os.Getpid())
	if err != nil || m.Resident < 1<<20 || m.Peak < m.Anonymous {
		t.Errorf("memory: %+v, %v", m, err)
	}
	started, err := Started(os.Getpid())
	if age := time.Since(started); err != nil || age < 0 || age > 24*time.Hour {
		t.Errorf("started %v ago, %v", age, err)
	}
	if _, err := CPU(1 << 22); err == nil {
		t.Error("a process that cannot exist has a clock")
	}
}

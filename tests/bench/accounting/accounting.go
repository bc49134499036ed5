// Package accounting reads the operating system's counters of a process: CPU time, resident
// and peak memory, and start time. It uses Linux's /proc (proc(5)) and process clocks
// (clock_getcpuclockid(3)).
package accounting

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Memory is the memory of a process, in bytes.
type Memory struct {
	// Resident is VmRSS: anonymous memory, and mapped pages of files, including the
	// program's.
	Resident int64 `json:"resident"`
	// Anonymous is RssAnon: heap and stacks.
	Anonymous int64 `json:"anonymous"`
	// Peak is VmHWM, the largest Resident since the start or [ResetPeak].
	Peak int64 `json:"peak"`
}

// Plus adds two processes.
func (m Memory) Plus(o Memory) Memory {
	return Memory{m.Resident + o.Resident, m.Anonymous + o.Anonymous, m.Peak + o.Peak}
}

// MemoryOf reads /proc/<pid>/status.
func MemoryOf(pid int) (Memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	return parseStatus(data)
}

func parseStatus(data []byte) (Memory, error) {
	var m Memory
	found := 0
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		var into *int64
		switch name {
		case "VmRSS":
			into = &m.Resident
		case "RssAnon":
			into = &m.Anonymous
		case "VmHWM":
			into = &m.Peak
		default:
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("read %s of a process: %w", name, err)
		}
		*into = kib << 10
		found++
	}
	if found != 3 {
		return Memory{}, fmt.Errorf("read memory of a process: %d of 3 figures are there; has it ended?", found)
	}
	return m, nil
}

// ResetPeak resets the peak of a process to its current memory (/proc/<pid>/clear_refs,
// value 5).
func ResetPeak(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the memory peak of process %d: %w", pid, err)
	}
	return nil
}

// tick is the unit of times in /proc/<pid>/stat: USER_HZ, which is 100 on every Linux that
// Go supports.
const tick = 10 * time.Millisecond

// Started returns the start time of a process, to 10 ms.
func Started(pid int) (time.Time, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}, fmt.Errorf("read the start of process %d: %w", pid, err)
	}
	uptime, err := os.ReadFile("/proc/uptime")
	now := time.Now()
	if err != nil {
		return time.Time{}, fmt.Errorf("read the start of process %d: %w", pid, err)
	}
	age, err := parseAge(stat, uptime)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the start of process %d: %w", pid, err)
	}
	return now.Add(-age), nil
}

// parseAge returns the time since the start of a process.
func parseAge(stat, uptime []byte) (time.Duration, error) {
	// The name in parentheses may contain anything, so fields are counted after it, from
	// the third one on.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const startTime = 22
	if len(fields) <= startTime-3 {
		return 0, fmt.Errorf("%d fields in stat", len(fields)+2)
	}
	ticks, err := strconv.ParseInt(fields[startTime-3], 10, 64)
	if err != nil {
		return 0, err
	}
	up, _, _ := strings.Cut(string(uptime), " ")
	seconds, err := strconv.ParseFloat(up, 64)
	if err != nil {
		return 0, err
	}
	return time.Duration(seconds*float64(time.Second)) - time.Duration(ticks)*tick, nil
}

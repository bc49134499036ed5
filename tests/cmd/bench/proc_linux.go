package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc: USER_HZ, 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// process is what the operating system says of one; see proc(5).
type process struct {
	started   time.Time
	cpu       time.Duration
	rss, anon int64 // bytes
}

func readProcess(pid int) (process, error) {
	var p process
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, err
	}
	// The name in parentheses may contain anything; fields count from behind it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	number := func(field int) int64 {
		value, parseErr := strconv.ParseInt(fields[field-3], 10, 64)
		if parseErr != nil && err == nil {
			err = fmt.Errorf("/proc/%d/stat field %d: %w", pid, field, parseErr)
		}
		return value
	}
	p.cpu = time.Duration(number(14)+number(15)) * tick
	booted, bootErr := bootTime()
	if bootErr != nil {
		return p, bootErr
	}
	p.started = booted.Add(time.Duration(number(22)) * tick)
	if err != nil {
		return p, err
	}
	p.rss, p.anon, err = memory(pid)
	return p, err
}

// bootTime is when the machine started, as exactly as its uptime tells.
func bootTime() (time.Time, error) {
	uptime, err := os.ReadFile("/proc/uptime")
	now := time.Now()
	if err != nil {
		return now, err
	}
	seconds, err := strconv.ParseFloat(strings.Fields(string(uptime))[0], 64)
	return now.Add(-time.Duration(seconds * float64(time.Second))), err
}

func memory(pid int) (rss, anon int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(status))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			rss = kib << 10
		case "RssAnon":
			anon = kib << 10
		}
	}
	return rss, anon, lines.Err()
}

package accounting

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is the published description of the machine, without names and paths.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory"` // bytes
	OS     string `json:"os"`
}

// ThisMachine reads /proc; fields that it cannot read stay empty.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = lineOf(data, "model name")
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		m.Memory = kibibytes(lineOf(data, "MemTotal"))
	}
	if data, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		release, _, _ := strings.Cut(strings.TrimSpace(string(data)), "-")
		m.OS += " " + release
	}
	return m
}

// Available returns the memory that programs can still get (MemAvailable), in bytes; 0 if
// unknown.
func Available() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return kibibytes(lineOf(data, "MemAvailable"))
}

func kibibytes(value string) int64 {
	kib, err := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

func lineOf(data []byte, key string) string {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

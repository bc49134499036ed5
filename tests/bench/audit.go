package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"triune.dev/tests/bench/workload"
	"triune.dev/tests/cluster"
)

// auditLog is a directory for audit logs of servers; nil for servers without one.
type auditLog struct{ dir string }

func newAuditLog() (*auditLog, error) {
	dir, err := os.MkdirTemp("", "triune-audit-")
	if err != nil {
		return nil, fmt.Errorf("make room for audit logs: %w", err)
	}
	l := &auditLog{dir}
	if err := os.WriteFile(l.policy(), []byte(workload.AuditPolicy), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write the audit policy: %w", err), l.remove())
	}
	return l, nil
}

func (l *auditLog) policy() string { return filepath.Join(l.dir, "policy.yaml") }

func (l *auditLog) flags(tier cluster.Tier) []string {
	if l == nil {
		return nil
	}
	return []string{"--audit-policy-file=" + l.policy(), "--audit-log-path=" + filepath.Join(l.dir, string(tier)+".log")}
}

// size returns the size of all audit logs, including rotated ones, in bytes.
func (l *auditLog) size() (int64, error) {
	files, err := filepath.Glob(filepath.Join(l.dir, "*.log"))
	if err != nil {
		return 0, fmt.Errorf("read the size of audit logs: %w", err)
	}
	var size int64
	for _, file := range files {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // rotated meanwhile
		}
		if err != nil {
			return 0, fmt.Errorf("read the size of audit logs: %w", err)
		}
		size += info.Size()
	}
	return size, nil
}

func (l *auditLog) remove() error {
	if l == nil {
		return nil
	}
	return os.RemoveAll(l.dir)
}

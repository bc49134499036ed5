package etcd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// newMember is the error that etcd logs at the first start of a member, which reads its
// storage version before it has written one.
const newMember = "failed to update storage version"

// log writes the errors of a serving member to klog. It drops those of the start, which
// Start returns, and those of Close, which are about listeners that etcd closes itself.
type log struct {
	serving *atomic.Bool
	// fatal receives what would end the process during the start: etcd panics or exits if
	// its disk is full, or its database damaged. It has room for one error, with which the
	// goroutine of etcd stops. After the start it is full, and etcd ends the process.
	fatal  chan<- error
	fields []zapcore.Field
}

// Enabled implements zapcore.Core.
func (l log) Enabled(level zapcore.Level) bool { return level >= zapcore.ErrorLevel }

// With implements zapcore.Core.
func (l log) With(fields []zapcore.Field) zapcore.Core {
	return log{l.serving, l.fatal, slices.Concat(l.fields, fields)}
}

// Check implements zapcore.Core.
func (l log) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	// Always log entries that end the process, such as those about corrupt data.
	fatal := entry.Level > zapcore.ErrorLevel
	if fatal || l.Enabled(entry.Level) && l.serving.Load() && entry.Message != newMember {
		return checked.AddCore(entry, l)
	}
	return checked
}

// Write implements zapcore.Core.
func (l log) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range slices.Concat(l.fields, fields) {
		field.AddTo(encoder)
	}
	if entry.Level > zapcore.ErrorLevel && !l.serving.Load() {
		select {
		case l.fatal <- startError(entry.Message, encoder.Fields):
			select {} // the process ends with Start's error
		default:
		}
	}
	klog.Background().Error(nil, "etcd reports an error", "text", entry.Message, "fields", encoder.Fields)
	return nil
}

// startError returns an entry as an error of one line, with all fields if none of them is the
// cause.
func startError(message string, fields map[string]any) error {
	if cause, ok := fields["error"]; ok {
		return fmt.Errorf("%s: %v", message, cause)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		message += fmt.Sprintf(", %s %v", name, fields[name])
	}
	return errors.New(message)
}

// Sync implements zapcore.Core.
func (log) Sync() error { return nil }

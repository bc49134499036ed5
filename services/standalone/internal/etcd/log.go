package etcd

import (
	"slices"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// newMember is what etcd reports as an error whenever a member starts for the first
// time: it looks for its version before it has written one.
const newMember = "failed to update storage version"

// log passes on the errors of a member that serves. What happens while it starts
// is returned by Start, and while it closes it reports every listener that it
// closes itself.
type log struct {
	serving *atomic.Bool
	fields  []zapcore.Field
}

// Enabled implements zapcore.Core.
func (l log) Enabled(level zapcore.Level) bool { return level >= zapcore.ErrorLevel }

// With implements zapcore.Core.
func (l log) With(fields []zapcore.Field) zapcore.Core {
	return log{l.serving, slices.Concat(l.fields, fields)}
}

// Check implements zapcore.Core.
func (l log) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	// What ends the process, as damaged data does, is never left unsaid.
	ends := entry.Level > zapcore.ErrorLevel
	if ends || l.Enabled(entry.Level) && l.serving.Load() && entry.Message != newMember {
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
	klog.Background().Error(nil, "etcd reports an error", "text", entry.Message, "fields", encoder.Fields)
	return nil
}

// Sync implements zapcore.Core.
func (log) Sync() error { return nil }

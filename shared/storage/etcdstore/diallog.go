package etcdstore

import (
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// clientLogger makes etcd's client log to klog, with retries only at a high verbosity:
// operations return their errors anyway.
func clientLogger() *zap.Logger { return zap.New(klogCore{}) }

// klogCore is a zapcore.Core that writes to klog.
type klogCore struct{ fields []zapcore.Field }

func verbosity(level zapcore.Level) klog.Level {
	if level >= zapcore.ErrorLevel {
		return 0
	}
	return 4
}

// Enabled implements zapcore.LevelEnabler.
func (c klogCore) Enabled(level zapcore.Level) bool {
	return level > zapcore.DebugLevel && klog.V(verbosity(level)).Enabled()
}

// With implements zapcore.Core.
func (c klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check implements zapcore.Core.
func (c klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(enc)
	}
	for _, f := range fields {
		f.AddTo(enc)
	}
	klog.V(verbosity(entry.Level)).InfoS("etcd client", "level", entry.Level.String(), "message", entry.Message, "fields", fmt.Sprint(enc.Fields))
	return nil
}

// Sync implements zapcore.Core.
func (klogCore) Sync() error { return nil }

package etcd

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

func TestLog(t *testing.T) {
	tests := map[string]struct {
		serving bool
		write   func(*zap.Logger)
		want    string // "" for nothing
	}{
		"error while serving":  {true, func(l *zap.Logger) { l.Error("disk is slow", zap.Int("took", 3)) }, `text="disk is slow"`},
		"fields":               {true, func(l *zap.Logger) { l.With(zap.String("a", "b")).Error("oh", zap.Int("c", 4)) }, `"c":4`},
		"warning":              {true, func(l *zap.Logger) { l.Warn("slow") }, ""},
		"error while starting": {false, func(l *zap.Logger) { l.Error("bootstrap failed") }, ""},
		"a new member":         {true, func(l *zap.Logger) { l.Error(newMember) }, ""},
		"a panic":              {false, func(l *zap.Logger) { l.Panic("damaged") }, `text="damaged"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))))
			defer klog.ClearLogger()
			var serving atomic.Bool
			serving.Store(test.serving)
			func() {
				defer func() { _ = recover() }() // zap panics after it has logged a panic
				test.write(zap.New(log{serving: &serving}))
			}()
			if got := out.String(); (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("logged %q, want %q", got, test.want)
			}
		})
	}
}

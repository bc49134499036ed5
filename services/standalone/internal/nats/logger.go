package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"k8s.io/klog/v2"
)

// logger writes the errors and warnings of NATS to klog. Fatalf is the only report of a
// failed start.
type logger struct {
	fatal chan error // the first fatal error
}

// startPoll is the interval at which a starting server is checked.
const startPoll = 10 * time.Millisecond

// ready waits until s accepts connections.
func (l *logger) ready(ctx context.Context, s *server.Server) error {
	for begin := time.Now(); time.Since(begin) < startLimit; {
		ready := s.ReadyForConnections(startPoll)
		select {
		case err := <-l.fatal:
			return err
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		if ready {
			return nil
		}
	}
	return fmt.Errorf("not ready after %v", startLimit)
}

// Fatalf implements server.Logger.
func (l *logger) Fatalf(format string, args ...any) {
	select {
	case l.fatal <- errors.New(strings.TrimSpace(fmt.Sprintf(format, args...))):
	default: // the first error is the cause
	}
}

// Errorf implements server.Logger.
func (*logger) Errorf(format string, args ...any) {
	klog.Background().Error(nil, "NATS reports an error", "text", fmt.Sprintf(format, args...))
}

// Warnf implements server.Logger.
func (*logger) Warnf(format string, args ...any) {
	klog.Background().V(2).Info("NATS warns", "text", fmt.Sprintf(format, args...))
}

// Noticef implements server.Logger.
func (*logger) Noticef(string, ...any) {}

// Debugf implements server.Logger.
func (*logger) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (*logger) Tracef(string, ...any) {}

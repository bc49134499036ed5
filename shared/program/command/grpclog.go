package command

import (
	"fmt"
	"os"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// The verbosity of gRPC's messages. It warns of every attempt to reach an etcd that is
// down; health checks and the errors of requests report that already.
const (
	grpcWarnings klog.Level = 2
	grpcInfos    klog.Level = 4
)

// grpcLogger is a grpclog.LoggerV2 that writes to klog. k8s.io/apiserver sets one
// of its own in an init function, so it has to be replaced before a client dials.
type grpcLogger struct{}

var _ grpclog.LoggerV2 = grpcLogger{}

// depth is the number of grpclog's stack frames between klog and the caller that logs.
const depth = 2

func (grpcLogger) Info(args ...any)                 { logGRPC(grpcInfos, fmt.Sprint(args...)) }
func (grpcLogger) Infoln(args ...any)               { logGRPC(grpcInfos, fmt.Sprint(args...)) }
func (grpcLogger) Infof(format string, args ...any) { logGRPC(grpcInfos, fmt.Sprintf(format, args...)) }
func (grpcLogger) Warning(args ...any)              { logGRPC(grpcWarnings, fmt.Sprint(args...)) }
func (grpcLogger) Warningln(args ...any)            { logGRPC(grpcWarnings, fmt.Sprint(args...)) }
func (grpcLogger) Warningf(format string, args ...any) {
	logGRPC(grpcWarnings, fmt.Sprintf(format, args...))
}
func (grpcLogger) Error(args ...any)   { klog.ErrorDepth(depth, args...) }
func (grpcLogger) Errorln(args ...any) { klog.ErrorDepth(depth, args...) }
func (grpcLogger) Errorf(format string, args ...any) {
	klog.ErrorDepth(depth, fmt.Sprintf(format, args...))
}
func (grpcLogger) Fatal(args ...any)                 { fatal(fmt.Sprint(args...)) }
func (grpcLogger) Fatalln(args ...any)               { fatal(fmt.Sprint(args...)) }
func (grpcLogger) Fatalf(format string, args ...any) { fatal(fmt.Sprintf(format, args...)) }

// V implements grpclog.LoggerV2.
func (grpcLogger) V(level int) bool { return klog.V(grpcInfos + klog.Level(level)).Enabled() }

func logGRPC(level klog.Level, message string) {
	if v := klog.V(level); v.Enabled() {
		v.InfoSDepth(depth, "grpc", "message", message)
	}
}

// fatal exits the process, as grpclog.LoggerV2 demands.
func fatal(message string) {
	klog.ErrorDepth(depth, message)
	klog.Flush()
	os.Exit(1)
}

package cluster

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
)

// ToCompare is the help text of -target in suites that compare a server with kube-apiserver.
const ToCompare = "topology to compare with kube-apiserver: triune, tiers, or kube-apiserver for a check of the suite"

// SuiteFlags defines the flags -target, with this help text, and -replicas of a suite. Their
// defaults are TRIUNE_TARGET, or triune, and TRIUNE_REPLICAS, or the given number: the go
// command caches no results of tests with flags of their own, so what is run often is
// configured by the environment.
func SuiteFlags(targetHelp string, defaultReplicas int) (target *string, replicas *int) {
	if n, err := strconv.Atoi(os.Getenv("TRIUNE_REPLICAS")); err == nil {
		defaultReplicas = n
	}
	return flag.String("target", cmp.Or(os.Getenv("TRIUNE_TARGET"), string(Triune)), targetHelp),
		flag.Int("replicas", defaultReplicas, "replicas of every tier of the tiers topology")
}

// Main is the TestMain of a suite whose tests share servers. run starts them, runs the tests,
// and returns the exit code. Its context ends with a signal. If tests are only listed, run is
// not called. Main does not return.
func Main(m *testing.M, run func(ctx context.Context) (code int, err error)) {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Discard closes the cluster and removes its files. The end of its logs goes to standard
// error if the tests have failed or it does not close.
func (c *Cluster) Discard(failed bool) error {
	err := c.Close()
	if failed || err != nil {
		fmt.Fprintln(os.Stderr, c.Logs(16<<10))
	}
	return errors.Join(err, os.RemoveAll(c.Dir))
}

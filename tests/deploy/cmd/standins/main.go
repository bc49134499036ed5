// Command standins builds images of etcd, NATS, Prometheus, the Kubernetes components and
// kwok for a machine without a registry, and prints the variables that make
// docker-compose.yml use them: make images stand-ins.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"triune.dev/tests/deploy/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	env, err := engine.StandIns(ctx, os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
	for _, variable := range env {
		fmt.Println(variable)
	}
}

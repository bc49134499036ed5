package parity

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"triune.dev/shared/pki"
	"triune.dev/tests/cluster"
)

var (
	target   = flag.String("target", cmp.Or(os.Getenv("TRIUNE_TARGET"), string(cluster.Triune)), "topology to compare with kube-apiserver: triune, tiers, or kube-apiserver for a check of the suite")
	replicas = flag.Int("replicas", 1, "replicas of every tier of the tiers topology")
)

// peers are the two servers of this run: the reference and the one under test.
var peers struct{ reference, tested *Peer }

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run(), nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// One set of keys for both: certificates and key ids are in some answers.
	dir, err := os.MkdirTemp("", "triune-parity-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	keys, err := pki.Ensure(dir, pki.Options{Clients: matrixClients})
	if err != nil {
		return 1, err
	}
	var starting errgroup.Group
	for _, p := range []struct {
		name     string
		topology cluster.Topology
		into     **Peer
	}{
		{"kube-apiserver", cluster.KubeAPIServer, &peers.reference},
		{"tested " + *target, cluster.Topology(*target), &peers.tested},
	} {
		starting.Go(func() error {
			c, err := cluster.Start(ctx, cluster.Config{Topology: p.topology, Replicas: *replicas, PKI: keys})
			if err != nil {
				return err
			}
			*p.into, err = NewPeer(p.name, c)
			return err
		})
	}
	err = starting.Wait()
	if err == nil {
		code = m.Run()
	}
	for _, p := range []*Peer{peers.reference, peers.tested} {
		if p == nil {
			continue
		}
		err = errors.Join(err, p.Cluster.Close())
		if (code != 0 || err != nil) && p == peers.tested {
			fmt.Fprintln(os.Stderr, p.Cluster.Logs(16<<10))
		}
		err = errors.Join(err, os.RemoveAll(p.Cluster.Dir))
	}
	return code, err
}

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

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
)

var (
	target   = flag.String("target", cmp.Or(os.Getenv("TRIUNE_TARGET"), string(cluster.Triune)), "topology to compare with kube-apiserver: triune, tiers, or kube-apiserver for a check of the suite")
	replicas = flag.Int("replicas", cluster.Replicas(1), "replicas of every tier of the tiers topology")
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
	// Both servers use the same keys: certificates and key IDs are in some answers.
	dir, err := os.MkdirTemp("", "triune-parity-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if keys, err = pki.Ensure(dir, pki.Options{Clients: matrixClients}); err != nil {
		return 1, err
	}
	started, err := startPeers(ctx, nil)
	peers.reference, peers.tested = started[0], started[1]
	if err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, closePeers(started, func() bool { return code != 0 })); err != nil {
		code = 1
	}
	return code, err
}

// keys has the keys of all servers of this run.
var keys *pki.PKI

// startPeers starts kube-apiserver and the server under test with these flags. With an
// error it also returns the servers that have started.
func startPeers(ctx context.Context, flags func(cluster.Tier) []string) (started [2]*Peer, err error) {
	var starting errgroup.Group
	for i, topology := range []cluster.Topology{cluster.KubeAPIServer, cluster.Topology(*target)} {
		name := "kube-apiserver"
		if i == 1 {
			name = "tested " + *target
		}
		starting.Go(func() error {
			config := cluster.Config{Topology: topology, Replicas: *replicas, PKI: keys}
			if flags != nil {
				config.Flags = map[cluster.Tier][]string{}
				for _, tier := range (&cluster.Cluster{Config: config}).ServingTiers() {
					config.Flags[tier] = flags(tier)
				}
			}
			c, err := cluster.Start(ctx, config)
			if err != nil {
				return err
			}
			started[i], err = NewPeer(name, c)
			return err
		})
	}
	return started, starting.Wait()
}

// closePeers stops the servers, and prints the end of the tested server's log if there was
// a failure.
func closePeers(started [2]*Peer, failed func() bool) (err error) {
	for i, p := range started {
		if p == nil {
			continue
		}
		err = errors.Join(err, p.Cluster.Close())
		if i == 1 && (err != nil || failed()) {
			fmt.Fprintln(os.Stderr, p.Cluster.Logs(16<<10))
		}
		err = errors.Join(err, os.RemoveAll(p.Cluster.Dir))
	}
	return err
}

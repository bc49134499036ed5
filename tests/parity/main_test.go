package parity

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sync/errgroup"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
)

var target, replicas = cluster.SuiteFlags(cluster.ToCompare, 1)

// peers are the two servers of this run: the reference and the one under test.
var peers struct{ reference, tested *Peer }

func TestMain(m *testing.M) {
	cluster.Main(m, func(ctx context.Context) (int, error) { return run(ctx, m) })
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	// One set of keys for both: certificates and key ids are in some answers.
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
	return code, errors.Join(err, closePeers(started, func() bool { return code != 0 }))
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
		if p != nil {
			err = errors.Join(err, p.Cluster.Discard(i == 1 && failed()))
		}
	}
	return err
}

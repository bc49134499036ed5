package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"triune.dev/tests/cluster"
)

var target, replicas = cluster.SuiteFlags("topology to test: kube-apiserver, triune, tiers or external", 2)

var (
	external = flag.String("kubeconfig", "", "kubeconfig of an administrator of the server that -target=external tests")
	flagSet  = flag.String("flags", os.Getenv("TRIUNE_FLAGS"), "start the servers with the flags of a production cluster: production or production-max-in-flight")
	etcd     = flag.Bool("external-etcd", false, "give triune an etcd process in place of its own")
	roles    = flag.Bool("etcd-roles", false, "give each of the tiers a user and a role of its own in etcd")
	disrupt  = flag.Bool("disrupt", false, "kill and restart every tier once in the middle of the suite")
)

// shared is the server of this run and its state.
var shared struct {
	cluster *cluster.Cluster
	// production has the servers behind the flags of -flags; nil without it.
	production *production

	mu        sync.Mutex
	started   int // number of tests that called server
	disrupted int // number of tiers that were killed so far
}

func TestMain(m *testing.M) {
	cluster.Main(m, func(ctx context.Context) (int, error) { return run(ctx, m) })
}

func run(ctx context.Context, m *testing.M) (int, error) {
	if *flagSet != "" {
		dir, err := os.MkdirTemp("", "triune-production-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		if shared.production, err = newProduction(dir); err != nil {
			return 1, err
		}
	}
	c, err := start(ctx)
	if err != nil {
		return 1, err
	}
	shared.cluster = c
	code := m.Run()
	if code == 0 && shared.production != nil {
		log := func(string, ...any) {}
		if testing.Verbose() {
			log = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
		}
		if err := ownRequests(c, shared.production, log); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code, c.Discard(code != 0)
}

// start starts the server of this run, or connects to the external one.
func start(ctx context.Context) (*cluster.Cluster, error) {
	switch isExternal := cluster.Topology(*target) == cluster.External; {
	case isExternal && *external == "":
		return nil, errors.New("-target=external needs -kubeconfig, the file of a server that runs already")
	case isExternal && *disrupt:
		return nil, errors.New("-disrupt kills tiers, which -target=external has none of")
	case isExternal && *flagSet != "":
		return nil, errors.New("-flags starts servers, and -target=external has its own")
	case isExternal:
		return cluster.Connect(ctx, *external)
	case *external != "":
		return nil, fmt.Errorf("-kubeconfig is for -target=external, not for -target=%s", *target)
	}
	config := targetConfig()
	if *flagSet != "" {
		if _, ok := flagSets[*flagSet]; !ok {
			return nil, fmt.Errorf("-flags=%s is none of %q", *flagSet, slices.Sorted(maps.Keys(flagSets)))
		}
		if err := shared.production.configure(&config, *flagSet); err != nil {
			return nil, err
		}
	}
	return cluster.Start(ctx, config)
}

// targetConfig returns the configuration under test, for the shared server and for tests
// that start their own.
func targetConfig() cluster.Config {
	return cluster.Config{Topology: cluster.Topology(*target), Replicas: *replicas, ExternalEtcd: *etcd, EtcdRoles: *roles}
}

// server returns the shared server. With -disrupt, every third call kills one more tier and
// starts it again.
func server(t *testing.T) *cluster.Cluster {
	t.Helper()
	needs(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	c := shared.cluster
	shared.started++
	tiers := c.ServingTiers()
	if *disrupt && shared.started%3 == 0 && shared.disrupted < len(tiers) {
		tier := tiers[shared.disrupted]
		shared.disrupted++
		t.Logf("kill and restart %s", tier)
		for i := 0; c.Process(tier, i) != nil; i++ {
			c.Kill(tier, i)
		}
		for i := 0; c.Process(tier, i) != nil; i++ {
			if err := c.StartReplica(t.Context(), tier, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	return c
}

// full skips a test with -short.
func full(t *testing.T) {
	t.Helper()
	needs(t)
	if testing.Short() {
		t.Skip("not part of the fast half (-short)")
	}
}

// slug returns the name of a test as a valid name of an object.
func slug(t *testing.T) string {
	name := strings.ToLower(t.Name())
	name = strings.NewReplacer("/", "-", "_", "-").Replace(name)
	return strings.TrimSuffix(name[:min(len(name), 50)], "-")
}

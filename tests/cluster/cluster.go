package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/tools"
)

// Topology is the kind of control plane of a [Cluster].
type Topology string

// The topologies that suites know.
const (
	// KubeAPIServer is the reference: kube-apiserver and etcd.
	KubeAPIServer Topology = "kube-apiserver"
	// Triune is one process with embedded etcd and NATS.
	Triune Topology = "triune"
	// Tiers is one process for every tier, with an etcd and a nats-server.
	Tiers Topology = "tiers"
)

// Topologies returns all topologies that can be started.
func Topologies() []Topology { return []Topology{KubeAPIServer, Triune, Tiers} }

// Tier is a part of a cluster that can be restarted and killed on its own. In a topology
// with one server process, that is one tier, named like its binary.
type Tier string

// The tiers.
const (
	Aggregator Tier = "aggregator"
	Core       Tier = "core"
	Extensions Tier = "extensions"
	Etcd       Tier = "etcd"
	NATS       Tier = "nats-server"
)

// EtcdOf returns the name of the etcd of one tier with [Config.EtcdPerTier].
func EtcdOf(tier Tier) Tier { return Etcd + "-" + tier }

// startTimeout bounds one start, from the process to a green readyz.
const startTimeout = 90 * time.Second

// Config configures a cluster. The zero value of every field but Topology is usable.
type Config struct {
	Topology Topology
	// Replicas of every tier of the Tiers topology; 0 stands for 1.
	Replicas int
	// EtcdURL is the URL of a running etcd; if it is empty, the cluster starts its own
	// (Triune has one inside).
	EtcdURL string
	// ExternalEtcd makes Triune use an etcd process instead of its own.
	ExternalEtcd bool
	// EtcdData is the data directory of a stopped etcd, see [Cluster.CopyEtcd]: the etcd of
	// the cluster starts with a copy of it.
	EtcdData string
	// ExternalNATS makes Triune use a nats-server process instead of its own.
	ExternalNATS bool
	// EtcdPerTier gives every tier of the Tiers topology its own etcd process, named by
	// [EtcdOf].
	EtcdPerTier bool
	// EtcdRoles gives every tier of the Tiers topology its own user and role in the etcd
	// process, which then refuses all other clients; see [Cluster.EtcdAs].
	EtcdRoles bool
	// PKI is the PKI of another cluster, so that the tokens of each are valid in the other;
	// nil creates a new one.
	PKI *pki.PKI
	// AdvertiseEach makes each aggregator advertise an address of its own, [Advertised].
	AdvertiseEach bool
	// Flags are added to the command line of a tier, or of a component such as
	// kube-controller-manager.
	Flags map[Tier][]string
	// Without names flags that no program gets ("--authorization-mode").
	Without []string
	// Programs are run in place of our own programs of the same name ("triune", "core").
	Programs map[string]string
	// ReadPrograms reads the programs before they are started, so that a start does not
	// wait for the disk.
	ReadPrograms bool
}

// Advertised returns the address that replica i advertises with [Config.AdvertiseEach].
func Advertised(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) }

// tools returns the programs that Start runs besides our own.
func (c Config) tools() []string {
	var names []string
	if c.Topology == KubeAPIServer {
		names = append(names, string(KubeAPIServer))
	}
	if c.EtcdPerTier || c.EtcdURL == "" && (c.Topology != Triune || c.ExternalEtcd) {
		names = append(names, string(Etcd))
	}
	if c.Topology == Tiers || c.ExternalNATS {
		names = append(names, string(NATS))
	}
	return names
}

// Cluster is a running control plane. Its methods must not be called concurrently, except
// for the accessors.
type Cluster struct {
	// Config is the configuration it was started with.
	Config Config
	// Dir is the directory of its files.
	Dir string
	// URL is the URL of the API.
	URL string
	// Kubeconfig is a kubeconfig for a user in group system:masters.
	Kubeconfig string
	// EtcdURL is the URL of its etcd; empty if that is inside the process.
	EtcdURL string
	// PKI has its certificates and keys.
	PKI *pki.PKI
	// Tokens is the static token file: a user alice in group testers and a user bob without
	// groups, with the tokens alice-token and bob-token; empty for an external server.
	Tokens string
	// Front is the balancer in front of all replicas, which can cut connections.
	Front *Balancer

	replicas map[Tier][]*replica
	order    []Tier // in the order of their start
	extra    []*Process
}

// replica is a process with its readiness check.
type replica struct {
	*Process
	url   string
	ready func(context.Context) error
}

// Run starts a cluster that ends with the test. If the test fails, it logs the ends of all
// logs.
func Run(t testing.TB, config Config) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(c.Logs(8 << 10))
		}
		os.RemoveAll(c.Dir)
	})
	return c
}

// Start starts a cluster and returns when it is ready. The caller closes it and removes its
// directory. On error no process is left running.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	config.Replicas = max(1, config.Replicas)
	// Build tools before the timeout of the start begins: a first build takes minutes.
	for _, name := range config.tools() {
		if _, err := tools.Path(ctx, name); err != nil {
			return nil, fmt.Errorf("start %s: %w", config.Topology, err)
		}
	}
	dir, err := os.MkdirTemp("", "triune-"+string(config.Topology)+"-")
	if err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	c := &Cluster{Config: config, Dir: dir, EtcdURL: config.EtcdURL, PKI: config.PKI, replicas: map[Tier][]*replica{}}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %v", startTimeout))
	defer cancel()
	if err := c.start(ctx); err != nil {
		err = errors.Join(fmt.Errorf("start %s: %w", config.Topology, err), c.Close())
		os.RemoveAll(dir)
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if c.PKI == nil {
		p, err := pki.Ensure(filepath.Join(c.Dir, "pki"), pki.Options{Clients: c.Config.etcdClients()})
		if err != nil {
			return err
		}
		c.PKI = p
	}
	c.Tokens = filepath.Join(c.Dir, "tokens.csv")
	if err := os.WriteFile(c.Tokens, []byte("alice-token,alice,alice-uid,testers\nbob-token,bob,bob-uid\n"), 0o600); err != nil {
		return err
	}
	if c.EtcdURL == "" && !c.Config.EtcdPerTier && (c.Config.Topology != Triune || c.Config.ExternalEtcd) {
		url, err := c.startEtcd(ctx, Etcd)
		if err != nil {
			return err
		}
		c.EtcdURL = url
	}
	var fronts []string
	var err error
	switch c.Config.Topology {
	case KubeAPIServer:
		fronts, err = c.startReference(ctx)
	case Triune:
		fronts, err = c.startTriune(ctx)
	case Tiers:
		fronts, err = c.startTiers(ctx)
	default:
		err = fmt.Errorf("unknown topology %q", c.Config.Topology)
	}
	if err != nil {
		return err
	}
	if c.Front, err = NewBalancer(fronts); err != nil {
		return err
	}
	c.URL = "https://" + c.Front.Addr()
	c.Kubeconfig = filepath.Join(c.Dir, "admin.kubeconfig")
	return c.WriteKubeconfig(c.Kubeconfig, c.PKI.Admin)
}

// WriteKubeconfig writes a kubeconfig with the given client certificate.
func (c *Cluster) WriteKubeconfig(path string, client pki.Pair) error {
	return pki.WriteKubeconfig(path, pki.Access{Server: c.URL, CAFile: c.PKI.ClusterCA.CertFile, Client: client})
}

// REST returns the configuration of an administrator's client, without a rate limit.
func (c *Cluster) REST() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", c.Kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}

// ServingTiers returns the tiers that answer requests, in the order of a request; none for
// an external server.
func (c *Cluster) ServingTiers() []Tier {
	switch c.Config.Topology {
	case Tiers:
		return []Tier{Aggregator, Core, Extensions}
	case External:
		return nil
	default:
		return []Tier{Tier(c.Config.Topology)}
	}
}

// Process returns replica i of a tier, nil if there is none.
func (c *Cluster) Process(tier Tier, i int) *Process {
	if rs := c.replicas[tier]; i < len(rs) {
		return rs[i].Process
	}
	return nil
}

// ReplicaURL returns the address of one replica, without the balancer.
func (c *Cluster) ReplicaURL(tier Tier, i int) string { return c.replicas[tier][i].url }

// Replicas returns the number of replicas of a tier.
func (c *Cluster) Replicas(tier Tier) int { return len(c.replicas[tier]) }

// NATSDir returns the directory in which the nats-server process stores streams.
func (c *Cluster) NATSDir() string { return filepath.Join(c.Dir, "nats") }

// Restart stops one replica gracefully, starts it again and returns when it is ready.
func (c *Cluster) Restart(ctx context.Context, tier Tier, i int) error {
	if err := c.replicas[tier][i].Stop(); err != nil {
		return err
	}
	return c.StartReplica(ctx, tier, i)
}

// Kill kills one replica. StartReplica starts it again.
func (c *Cluster) Kill(tier Tier, i int) { c.replicas[tier][i].Kill() }

// StartReplica starts a stopped or killed replica with the same command line, and returns
// when it is ready.
func (c *Cluster) StartReplica(ctx context.Context, tier Tier, i int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r := c.replicas[tier][i]
	return r.Start(ctx, r.ready)
}

// Stop stops all servers gracefully, except for an etcd process, so that another server can
// use it.
func (c *Cluster) Stop() error {
	var errs []error
	for _, tier := range slices.Backward(c.order) {
		if isEtcd(tier) {
			continue
		}
		for _, r := range c.replicas[tier] {
			errs = append(errs, r.Stop())
		}
	}
	return errors.Join(errs...)
}

// CopyEtcd copies the data of the etcd process into a new directory. It restarts the
// process.
func (c *Cluster) CopyEtcd(ctx context.Context, dir string) error {
	if err := c.replicas[Etcd][0].Stop(); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(c.Dir, string(Etcd)))); err != nil {
		return fmt.Errorf("copy etcd: %w", err)
	}
	return c.StartReplica(ctx, Etcd, 0)
}

// Close kills all processes. It may be called twice.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range slices.Backward(c.extra) {
		p.Kill() // clients have no state to save
	}
	if c.Front != nil {
		c.Front.Close()
	}
	errs = append(errs, c.Stop())
	for _, tier := range c.order {
		if !isEtcd(tier) {
			continue
		}
		for _, r := range c.replicas[tier] {
			errs = append(errs, r.Stop())
		}
	}
	return errors.Join(errs...)
}

func isEtcd(tier Tier) bool { return strings.HasPrefix(string(tier), string(Etcd)) }

// Logs returns the ends of all logs, at most limit bytes of each.
func (c *Cluster) Logs(limit int64) string {
	var b strings.Builder
	write := func(p *Process) {
		fmt.Fprintf(&b, "==> %s %s <==\n%s\n", p.Name, strings.Join(p.Args, " "), p.Log(limit))
	}
	for _, tier := range c.order {
		for _, r := range c.replicas[tier] {
			write(r.Process)
		}
	}
	for _, p := range c.extra {
		write(p)
	}
	return b.String()
}

// newProcess returns a process of a tool or, if own is set, of one of our binaries.
func (c *Cluster) newProcess(ctx context.Context, name, binary string, own bool, args []string) (*Process, error) {
	var path string
	var err error
	switch other, ok := c.Config.Programs[binary]; {
	case own && ok:
		path = other
	case own:
		path, err = tools.Binary(binary)
	default:
		path, err = tools.Path(ctx, binary)
	}
	if err != nil {
		return nil, err
	}
	if c.Config.ReadPrograms {
		if err := readAll(path); err != nil {
			return nil, err
		}
	}
	args = slices.DeleteFunc(args, func(arg string) bool {
		flag, _, _ := strings.Cut(arg, "=")
		return slices.Contains(c.Config.Without, flag)
	})
	return &Process{Name: name, Path: path, Args: args, Dir: c.Dir, LogFile: filepath.Join(c.Dir, "logs", name+".log")}, nil
}

func readAll(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, f)
	return err
}

func (c *Cluster) add(ctx context.Context, tier Tier, r *replica) error {
	if len(c.replicas[tier]) == 0 {
		c.order = append(c.order, tier)
	}
	c.replicas[tier] = append(c.replicas[tier], r)
	return r.Start(ctx, r.ready)
}

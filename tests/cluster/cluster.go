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

// Topology is what kind of control plane a [Cluster] is.
type Topology string

// The topologies that the suites know.
const (
	// KubeAPIServer is the reference: kube-apiserver and etcd.
	KubeAPIServer Topology = "kube-apiserver"
	// Triune is the one process with embedded etcd and NATS.
	Triune Topology = "triune"
	// Tiers is every tier a process of its own, with an etcd and a nats-server.
	Tiers Topology = "tiers"
)

// Topologies lists all of them.
func Topologies() []Topology { return []Topology{KubeAPIServer, Triune, Tiers} }

// Tier names a part of a cluster that is restarted and killed on its own. The
// whole server of a one-process topology is one tier, named as its binary.
type Tier string

// The tiers.
const (
	Aggregator Tier = "aggregator"
	Core       Tier = "core"
	Extensions Tier = "extensions"
	Etcd       Tier = "etcd"
	NATS       Tier = "nats-server"
)

// EtcdOf names the etcd of one tier, where [Config.EtcdPerTier] is set.
func EtcdOf(tier Tier) Tier { return Etcd + "-" + tier }

// startTimeout bounds one start, from the process to a green readyz.
const startTimeout = 90 * time.Second

// Config says what to start. The zero value of every field but Topology is
// usable.
type Config struct {
	Topology Topology
	// Replicas of every tier of the Tiers topology; 0 stands for 1.
	Replicas int
	// EtcdURL is an etcd that runs already; empty starts one that ends with
	// the cluster (Triune has its own then).
	EtcdURL string
	// ExternalEtcd makes Triune use an etcd process instead of its own.
	ExternalEtcd bool
	// EtcdData is the data directory of an etcd that does not run, see
	// [Cluster.CopyEtcd]: the etcd of the cluster begins with a copy of it.
	EtcdData string
	// ExternalNATS makes Triune use a nats-server process instead of its own.
	ExternalNATS bool
	// EtcdPerTier gives every tier of the Tiers topology an etcd process that
	// no other tier uses, named by [EtcdOf].
	EtcdPerTier bool
	// EtcdRoles gives every tier of the Tiers topology a user and a role of its own
	// in the etcd process, which others than they cannot ask then; see
	// [Cluster.EtcdAs].
	EtcdRoles bool
	// PKI of another cluster, so that the tokens of the one hold in the other;
	// nil makes a new one.
	PKI *pki.PKI
	// Flags are added to the command line of a tier.
	Flags map[Tier][]string
	// Without are flags that no program is given, by name ("--authorization-mode").
	Without []string
	// ReadPrograms before they are started, so that a start does not wait for the disk
	// where the system has dropped them from its page cache.
	ReadPrograms bool
}

// tools are the programs that Start runs besides our own.
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

// Cluster is a running control plane. Its methods are for one goroutine at a
// time, but for the accessors, which any may call.
type Cluster struct {
	// Config it was started with.
	Config Config
	// Dir holds its files.
	Dir string
	// URL of the API.
	URL string
	// Kubeconfig is a file with an identity in group system:masters.
	Kubeconfig string
	// EtcdURL is where its data is; empty when it is inside the process.
	EtcdURL string
	// PKI is its certificates and keys.
	PKI *pki.PKI
	// Tokens is the static token file: a user alice in group testers, and a
	// user bob in none, with the tokens alice-token and bob-token; empty where the
	// server is somebody else's.
	Tokens string
	// Front is what stands in front of all replicas and can cut connections.
	Front *Balancer

	replicas map[Tier][]*replica
	order    []Tier // in which they were started
	extra    []*Process
}

// replica is a process and how to know that it serves.
type replica struct {
	*Process
	url   string
	ready func(context.Context) error
}

// Run starts a cluster that ends with the test. A failing test gets the end of
// all logs.
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

// Start starts a cluster and returns when it is ready. The caller closes it and
// removes its directory. On error nothing keeps running.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	config.Replicas = max(1, config.Replicas)
	// Outside the time for the start: on a machine where nothing is built it takes minutes.
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

// WriteKubeconfig writes one that shows the given client certificate.
func (c *Cluster) WriteKubeconfig(path string, client pki.Pair) error {
	return pki.WriteKubeconfig(path, pki.Access{Server: c.URL, CAFile: c.PKI.ClusterCA.CertFile, Client: client})
}

// REST is the configuration of a client of the administrator, without a limit
// of requests per second.
func (c *Cluster) REST() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", c.Kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}

// ServingTiers are the tiers that answer requests, in the order of a request; none
// of a server that somebody else runs.
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

// Process returns one replica of a tier, counted from 0; nil if there is none.
func (c *Cluster) Process(tier Tier, i int) *Process {
	if rs := c.replicas[tier]; i < len(rs) {
		return rs[i].Process
	}
	return nil
}

// ReplicaURL is the address of one replica, past the balancer.
func (c *Cluster) ReplicaURL(tier Tier, i int) string { return c.replicas[tier][i].url }

// Replicas returns the number of replicas of a tier.
func (c *Cluster) Replicas(tier Tier) int { return len(c.replicas[tier]) }

// NATSDir is where the nats-server process keeps its streams.
func (c *Cluster) NATSDir() string { return filepath.Join(c.Dir, "nats") }

// Restart ends one replica in order, starts it again and returns when it is
// ready.
func (c *Cluster) Restart(ctx context.Context, tier Tier, i int) error {
	if err := c.replicas[tier][i].Stop(); err != nil {
		return err
	}
	return c.StartReplica(ctx, tier, i)
}

// Kill ends one replica without warning. StartReplica brings it back.
func (c *Cluster) Kill(tier Tier, i int) { c.replicas[tier][i].Kill() }

// StartReplica starts a replica that was stopped or killed, with the command
// line it had, and returns when it is ready.
func (c *Cluster) StartReplica(ctx context.Context, tier Tier, i int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r := c.replicas[tier][i]
	return r.Start(ctx, r.ready)
}

// Stop ends all servers in order but leaves an etcd process, so that another
// server can be pointed at it.
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

// CopyEtcd copies the data of the etcd process into a new directory. The process is
// stopped and started again for it.
func (c *Cluster) CopyEtcd(ctx context.Context, dir string) error {
	if err := c.replicas[Etcd][0].Stop(); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(c.Dir, string(Etcd)))); err != nil {
		return fmt.Errorf("copy etcd: %w", err)
	}
	return c.StartReplica(ctx, Etcd, 0)
}

// Close ends everything. It is safe to call twice.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range slices.Backward(c.extra) {
		p.Kill() // clients hold nothing that an orderly end would save
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

// Logs are the ends of all logs, at most limit bytes of each.
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

// newProcess prepares a tool or, if own is set, a binary of ours.
func (c *Cluster) newProcess(ctx context.Context, name, binary string, own bool, args []string) (*Process, error) {
	var path string
	var err error
	if own {
		path, err = tools.Binary(binary)
	} else {
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

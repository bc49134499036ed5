package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/bench/accounting"
	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
	"triune.dev/tests/bench/workload"
	"triune.dev/tests/cluster"
)

// subject is a server to measure.
type subject struct {
	name     string
	topology cluster.Topology // empty for the floor
	replicas int
	flags    []string // of each program
	program  string   // in place of our own triune; empty for our own
	aside    bool     // only measured if it is named
}

// subjects are in the order in which they run. The floor is last, because it uses the sizes
// of the others' responses.
var subjects = []subject{
	{name: report.Peer, topology: cluster.KubeAPIServer},
	{name: report.Ours, topology: cluster.Triune},
	{name: "tiers", topology: cluster.Tiers, replicas: 1},
	{name: "tiers×2", topology: cluster.Tiers, replicas: 2},
	{name: "triune/go", topology: cluster.Triune, flags: []string{"--http2-server=go"}, aside: true},
	{name: "tiers/go", topology: cluster.Tiers, replicas: 1, flags: []string{"--http2-server=go"}, aside: true},
	{name: report.Floor},
}

// Subjects returns the names of the subjects that are measured by default.
func Subjects() []string {
	var names []string
	for _, s := range subjects {
		if !s.aside {
			names = append(names, s.name)
		}
	}
	return names
}

func (s subject) kind() workload.Subject {
	return workload.Subject{Floor: s.topology == "", Tiers: s.topology == cluster.Tiers, Replicated: s.replicas > 1}
}

// ours reports whether the subject is Triune, whose profiles are wanted.
func (s subject) ours() bool { return s.topology == cluster.Triune || s.topology == cluster.Tiers }

// server is a running subject.
type server struct {
	env   *workload.Env
	close func() error
	// profiled has the URLs of the processes with profiles, by name.
	profiled map[string]load.Target
}

// start starts a subject. floor is the command line of the floor's program; audited enables
// an audit log.
func (s subject) start(ctx context.Context, floor []string, audited bool) (*server, error) {
	if s.topology == "" {
		return startFloor(ctx, floor)
	}
	var log *auditLog
	if audited {
		var err error
		if log, err = newAuditLog(); err != nil {
			return nil, err
		}
	}
	up, err := s.startCluster(ctx, log)
	if err != nil {
		return nil, errors.Join(err, log.remove())
	}
	stop := up.close
	up.close = func() error { return errors.Join(stop(), log.remove()) }
	return up, nil
}

func (s subject) startCluster(ctx context.Context, log *auditLog) (*server, error) {
	flags := map[cluster.Tier][]string{
		// Every etcd syncs acknowledged writes to the disk, like the one inside triune.
		cluster.Etcd: {"--unsafe-no-fsync=false"},
	}
	config := cluster.Config{Topology: s.topology, Replicas: s.replicas, ReadPrograms: true, Flags: flags}
	if s.program != "" {
		config.Programs = map[string]string{string(cluster.Triune): s.program}
	}
	for _, tier := range (&cluster.Cluster{Config: config}).ServingTiers() {
		flags[tier] = append(log.flags(tier), s.flags...)
	}
	c, err := cluster.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	up := &server{close: func() error { return errors.Join(c.Close(), os.RemoveAll(c.Dir)) }}
	if up.env, up.profiled, err = s.reach(ctx, c); err != nil {
		return nil, errors.Join(err, up.close())
	}
	if log != nil {
		up.env.AuditBytes = log.size
	}
	return up, nil
}

// reach returns the addresses and clients of a running cluster for workloads. They do not
// use the cluster's balancer, which runs in this process.
func (s subject) reach(ctx context.Context, c *cluster.Cluster) (*workload.Env, map[string]load.Target, error) {
	ready := time.Now()
	serving := c.ServingTiers()
	processes := func() []workload.Process {
		var all []workload.Process
		for _, tier := range append(serving, cluster.Etcd, cluster.NATS) {
			for i := 0; c.Process(tier, i) != nil; i++ {
				all = append(all, workload.Process{Name: string(tier), PID: c.Process(tier, i).PID()})
			}
		}
		return all
	}
	var started time.Time
	for _, p := range processes() {
		if p.Name == string(cluster.Etcd) || p.Name == string(cluster.NATS) {
			continue // they stand already where a server is started
		}
		at, err := accounting.Started(p.PID)
		if err != nil {
			return nil, nil, err
		}
		if started.IsZero() || at.Before(started) {
			started = at
		}
	}
	roots, err := pki.LoadPool(c.PKI.ClusterCA.CertFile)
	if err != nil {
		return nil, nil, err
	}
	anyone := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	user := func(tier cluster.Tier, i int) load.Target {
		return load.Target{URL: c.ReplicaURL(tier, i), TLS: anyone, Token: "alice-token"}
	}
	env := &workload.Env{Subject: s.kind(), Processes: processes, Started: ready.Sub(started), Hop: map[string]load.Target{}}
	profiled := map[string]load.Target{}
	for _, tier := range serving {
		env.Hop[string(tier)] = user(tier, 0)
		profiled[string(tier)] = user(tier, 0)
	}
	for i := 0; c.Process(serving[0], i) != nil; i++ {
		env.Targets = append(env.Targets, user(serving[0], i))
	}
	env.Restart = func(ctx context.Context) error {
		c.Kill(serving[0], 0)
		return c.StartReplica(ctx, serving[0], 0)
	}
	keys, err := pki.Ensure(c.PKI.Dir, pki.Options{Clients: []pki.Client{{Name: "reader", CommonName: "reader", Organizations: []string{workload.Readers}}}})
	if err != nil {
		return nil, nil, err
	}
	by := func(pair pki.Pair) (load.Target, error) {
		identity, err := pair.Load()
		config := anyone.Clone()
		config.Certificates = []tls.Certificate{identity}
		return load.Target{URL: env.Targets[0].URL, TLS: config}, err
	}
	if env.Admin, err = by(keys.Admin); err != nil {
		return nil, nil, err
	}
	if env.Reader, err = by(keys.Clients["reader"]); err != nil {
		return nil, nil, err
	}
	env.Nobody = user(serving[0], 0)
	env.Nobody.Token = "bob-token"
	return env, profiled, allow(ctx, env.Admin, env)
}

// binding grants the benchmarks' user all permissions by RBAC. A member of system:masters
// would bypass RBAC, and priority and fairness.
const binding = `{"metadata":{"name":"bench"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"testers"}]}`

func allow(ctx context.Context, admin load.Target, env *workload.Env) error {
	conn := load.Dial(admin)
	defer conn.Close()
	if _, err := conn.Get(ctx, load.Request{
		Method: http.MethodPost, Path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		ContentType: "application/json", Body: []byte(binding), Status: http.StatusCreated,
	}); err != nil {
		return fmt.Errorf("allow the user of the benchmarks: %w", err)
	}
	// Authorizers learn of it by watches. Every tier has its own authorizer, and the last
	// path below is served by the last tier.
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the rights did not arrive within a minute"))
	defer cancel()
	for _, target := range env.Targets {
		user := load.Dial(target)
		defer user.Close()
		for _, path := range []string{"/apis/apiregistration.k8s.io/v1/apiservices", "/api/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"} {
			for {
				_, err := user.Get(ctx, load.Request{Path: path})
				if err == nil {
					break
				}
				if !errors.Is(err, load.ErrAnswer) {
					return err
				}
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
					return fmt.Errorf("%w: %w", context.Cause(ctx), err)
				}
			}
		}
	}
	return nil
}

// startFloor starts the floor in a separate process, so that its CPU time is counted like
// that of the others.
func startFloor(ctx context.Context, command []string) (*server, error) {
	if len(command) == 0 {
		return nil, errors.New("start floor: no program")
	}
	dir, err := os.MkdirTemp("", "triune-floor-")
	if err != nil {
		return nil, fmt.Errorf("start floor: %w", err)
	}
	keys, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	port, err := cluster.FreePort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	pair := keys.Serving["aggregator"]
	p := &cluster.Process{
		Name: "floor", Path: command[0], Dir: dir, LogFile: filepath.Join(dir, "floor.log"),
		Args: append(command[1:len(command):len(command)], "-addr="+addr, "-tls-cert-file="+pair.CertFile, "-tls-private-key-file="+pair.KeyFile),
	}
	up := &server{close: func() error { return errors.Join(p.Stop(), os.RemoveAll(dir)) }}
	roots, err := pki.LoadPool(keys.ClusterCA.CertFile)
	if err != nil {
		return nil, errors.Join(err, up.close())
	}
	target := load.Target{URL: "https://" + addr, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := p.Start(ctx, func(ctx context.Context) error {
		conn := load.Dial(target)
		defer conn.Close()
		_, err := conn.Get(ctx, load.Request{Path: "/readyz"})
		return err
	}); err != nil {
		return nil, errors.Join(err, up.close())
	}
	up.env = &workload.Env{
		Subject: workload.Subject{Floor: true}, Targets: []load.Target{target},
		Processes: func() []workload.Process { return []workload.Process{{Name: "floor", PID: p.PID()}} },
	}
	return up, nil
}

// choose returns subjects by name.
func choose(names []string) ([]subject, error) {
	var chosen []subject
	for _, s := range subjects {
		for _, name := range names {
			if s.name == name {
				chosen = append(chosen, s)
			}
		}
	}
	if len(chosen) != len(names) {
		return nil, fmt.Errorf("choose servers: %q are not all of %q", strings.Join(names, ","), strings.Join(Subjects(), ","))
	}
	return chosen, nil
}

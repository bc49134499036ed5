package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/process/pki"
)

// External is a running control plane, reached by [Connect], that the suite does not stop.
// It has no tiers to kill, no accessible etcd, no static tokens, and only the certificates
// of its kubeconfig.
const External Topology = "external"

// Connect returns a cluster for a running server, given by a kubeconfig with an
// administrator's client certificate. Connections go through a balancer on 127.0.0.1, so
// that they can be cut; the server's certificate must be valid for that address. Connect
// waits until /readyz answers. Close does not stop the server; the caller removes Dir.
func Connect(ctx context.Context, kubeconfig string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "triune-"+string(External)+"-")
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &Cluster{Config: Config{Topology: External}, Dir: dir, replicas: map[Tier][]*replica{}}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %v", startTimeout))
	defer cancel()
	if err := c.connect(ctx, kubeconfig); err != nil {
		err = errors.Join(fmt.Errorf("connect with %s: %w", kubeconfig, err), c.Close())
		os.RemoveAll(dir)
		return nil, err
	}
	return c, nil
}

func (c *Cluster) connect(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	if server.Scheme != "https" || server.Port() == "" || server.Path != "" {
		return fmt.Errorf("the server %s is not of the form https://host:port", config.Host)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return err
	}
	if len(config.CAData) == 0 || len(config.CertData) == 0 || len(config.KeyData) == 0 {
		return errors.New("there is no CA, no client certificate, or no key of one")
	}
	at := func(name string) pki.Pair {
		base := filepath.Join(c.Dir, name)
		return pki.Pair{CertFile: base + ".crt", KeyFile: base + ".key"}
	}
	c.PKI = &pki.PKI{Dir: c.Dir, ClusterCA: pki.Pair{CertFile: at("ca").CertFile}, Admin: at("admin")}
	for file, data := range map[string][]byte{
		c.PKI.ClusterCA.CertFile: config.CAData,
		c.PKI.Admin.CertFile:     config.CertData,
		c.PKI.Admin.KeyFile:      config.KeyData,
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return err
		}
	}
	if c.Front, err = NewBalancer([]string{server.Host}); err != nil {
		return err
	}
	c.URL = "https://" + c.Front.Addr()
	c.Kubeconfig = filepath.Join(c.Dir, "admin.kubeconfig")
	if err := c.WriteKubeconfig(c.Kubeconfig, c.PKI.Admin); err != nil {
		return err
	}
	ready := probe(c.PKI, c.URL+"/readyz")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		last := ready(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w (%w)", last, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

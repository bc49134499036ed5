package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/process/pki"
)

// etcdRoot is etcd's user with all permissions.
const etcdRoot = "root"

// etcdClients returns the certificates of etcd's users, by common name.
func (c Config) etcdClients() []pki.Client {
	if !c.EtcdRoles {
		return nil
	}
	clients := []pki.Client{{Name: "etcd/" + etcdRoot, CommonName: etcdRoot, Authority: pki.EtcdCA}}
	for _, tier := range []Tier{Aggregator, Core, Extensions} {
		clients = append(clients, pki.Client{Name: "etcd/" + string(tier), CommonName: "triune-" + string(tier), Authority: pki.EtcdCA})
	}
	return clients
}

// etcdUserFlags returns the flags with which a program connects as a user of etcd.
func (c *Cluster) etcdUserFlags(user string) []string {
	if !c.Config.EtcdRoles {
		return nil
	}
	pair := c.PKI.Clients["etcd/"+user]
	flags := []string{"--etcd-cafile=" + c.PKI.EtcdCA.CertFile, "--etcd-certfile=" + pair.CertFile, "--etcd-keyfile=" + pair.KeyFile}
	if user != etcdRoot {
		flags = append(flags, "--etcd-compaction-interval=0") // etcd compacts itself
	}
	return flags
}

// startSecureEtcd starts an etcd that requires client certificates, and creates its users
// and roles.
func (c *Cluster) startSecureEtcd(ctx context.Context, name Tier, client int, flags []string) (string, error) {
	metrics, err := freePort()
	if err != nil {
		return "", err
	}
	url := secureURL(client)
	flags = append(flags,
		"--listen-client-urls="+url, "--advertise-client-urls="+url, "--listen-metrics-urls=http://"+address(metrics),
		"--cert-file="+c.PKI.EtcdServer.CertFile, "--key-file="+c.PKI.EtcdServer.KeyFile,
		"--trusted-ca-file="+c.PKI.EtcdCA.CertFile, "--client-cert-auth",
		"--auto-compaction-mode=periodic", "--auto-compaction-retention=5m")
	p, err := c.newProcess(ctx, string(name), "etcd", false, append(flags, c.Config.Flags[name]...))
	if err != nil {
		return "", err
	}
	if err := c.add(ctx, name, &replica{Process: p, url: url, ready: probe(c.PKI, "http://"+address(metrics)+"/health")}); err != nil {
		return "", err
	}
	return url, c.EnsureEtcdRoles(ctx, url)
}

// EnsureEtcdRoles runs the subcommand etcd-roles.
func (c *Cluster) EnsureEtcdRoles(ctx context.Context, url string) error {
	p, err := c.newProcess(ctx, "etcd-roles", string(Core), true, append([]string{"etcd-roles", "--etcd-servers=" + url}, c.etcdUserFlags(etcdRoot)...))
	if err != nil {
		return err
	}
	if err := p.Start(ctx, nil); err != nil {
		return err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("etcd-roles: %w", context.Cause(ctx))
	}
	if err := p.exitError(); err != nil {
		return fmt.Errorf("etcd-roles: %w\n%s", err, p.Log(4<<10))
	}
	return nil
}

// EtcdAs returns a client with the certificate of a tier or of root, with
// [Config.EtcdRoles]. The caller closes it.
func (c *Cluster) EtcdAs(user string) (*clientv3.Client, error) {
	pair, err := c.PKI.Clients["etcd/"+user].Load()
	if err != nil {
		return nil, err
	}
	authorities, err := pki.LoadPool(c.PKI.EtcdCA.CertFile)
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints: []string{c.EtcdURL}, DialTimeout: 10 * time.Second,
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: authorities, MinVersion: tls.VersionTLS12},
	})
}

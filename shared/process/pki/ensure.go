package pki

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
)

// Ensure makes the files in dir that o describes and returns their names.
//
// It is idempotent, may be called by several processes at once (a lock file serializes
// them), and needs no write permission if no file must be written. It writes all new files
// to the disk before it renames the first one. So an interrupted Ensure leaves either the
// old state or one that the next Ensure completes. Keys have mode 0600.
//
// The error is one line that names the file. Unless it is an error of the disk, no file has
// been changed.
func Ensure(dir string, o Options) (*PKI, error) {
	o, err := o.completed()
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	files := layout(dir, o)
	pending, refusal := plan(files, o)
	if refusal == nil && len(pending) == 0 {
		return files, nil
	}
	if refusal == nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("pki: make directory: %w", err)
		}
	}
	unlock, err := lockDir(dir)
	switch {
	case err != nil && refusal != nil:
		return nil, fmt.Errorf("pki: %w", refusal)
	case err != nil:
		return nil, fmt.Errorf("pki: lock directory: %w", err)
	}
	defer unlock()
	// Another process may have written files during or after the first plan.
	pending, err = plan(files, o)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	if err := writeAll(pending); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return files, nil
}

// plan reads the existing files and returns those that must be written. A later plan can
// complete any prefix of them: a key precedes its certificate, and an authority its leaves.
func plan(files *PKI, o Options) ([]file, error) {
	b := &builder{now: o.Now(), options: o}
	cluster := b.authority(files.ClusterCA, "triune-ca")
	front := b.authority(files.FrontProxyCA, "triune-front-proxy-ca")
	etcd := b.authority(files.EtcdCA, "triune-etcd-ca")
	nats := b.authority(files.NATSCA, "triune-nats-ca")
	byName := map[Authority]*issuer{ClusterCA: cluster, FrontProxyCA: front, EtcdCA: etcd, NATSCA: nats}

	for _, tier := range o.Tiers {
		b.leaf(files.Serving[tier], cluster, serving("triune-"+tier, o.apiserver(tier)))
	}
	for _, tier := range o.Tiers {
		b.leaf(files.Tier[tier], front, client(TierPrefix+tier))
	}
	b.leaf(files.FrontProxyClient, front, client(FrontProxyClientName))
	b.leaf(files.Admin, cluster, client("kubernetes-admin", "system:masters"))
	b.leaf(files.ControllerManager, cluster, client("system:kube-controller-manager"))
	b.leaf(files.Scheduler, cluster, client("system:kube-scheduler"))
	for _, c := range o.Clients {
		b.leaf(files.Clients[c.Name], byName[c.Authority], client(c.CommonName, c.Organizations...))
	}

	// Members of etcd and NATS clusters dial each other with their serving certificates,
	// so these two are also client certificates.
	peer := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	etcdServer, natsServer := serving("etcd", o.local("etcd")), serving("nats", o.local("nats"))
	etcdServer.usages, natsServer.usages = peer, peer
	b.leaf(files.EtcdServer, etcd, etcdServer)
	b.leaf(files.EtcdClient, etcd, client("triune-etcd-client"))
	b.leaf(files.NATSServer, nats, natsServer)
	b.leaf(files.NATSClient, nats, client("triune-nats-client"))

	b.signingKey(files.ServiceAccountKey, files.ServiceAccountPublicKey)
	return b.pending, b.err
}

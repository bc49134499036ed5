package pki

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
)

// Ensure makes dir hold every file that o asks for and returns their names.
//
// It is idempotent, may be called by several processes at once (they take turns
// on a lock file), and needs no write permission where nothing is to be written.
// All new files reach the disk before the first of them gets its name, so that
// an interrupted Ensure leaves either what was there or a state that the next
// Ensure completes. Keys have mode 0600.
//
// An error is one line that names the file. Nothing has been changed then,
// unless the error is one of the disk itself.
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
	// Another process may have been at work during the look, which saw a part of
	// it, or between the look and the lock.
	pending, err = plan(files, o)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	if err := writeAll(pending); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return files, nil
}

// plan reads what is there and returns the files that have to be written, in an
// order in which every prefix is a state that a later plan can complete: a key
// before its certificate, an authority before its leaves.
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

	// Members of etcd and NATS clusters dial each other with the certificate
	// they serve with, so these two are also client certificates.
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

package cluster

import (
	"net"
	"path/filepath"
	"strconv"

	"triune.dev/shared/process/pki"
)

const (
	loopback = "127.0.0.1"
	// serviceRange is kube-apiserver's documented default.
	serviceRange = "10.0.0.0/24"
	// advertise is a documentation address (RFC 5737): endpoints must not be loopback
	// addresses, and the machine may have no other.
	advertise = "192.0.2.1"
	issuer    = "https://kubernetes.default.svc.cluster.local"
)

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

func secureURL(port int) string { return "https://" + address(port) }

func etcdFlags(dir string, client, peer int) []string {
	return []string{
		"--name=test",
		"--data-dir=" + dir,
		"--listen-client-urls=http://" + address(client),
		"--advertise-client-urls=http://" + address(client),
		"--listen-peer-urls=http://" + address(peer),
		"--initial-advertise-peer-urls=http://" + address(peer),
		"--initial-cluster=test=http://" + address(peer),
		"--log-level=warn",
		// A test may lose its data in a power failure.
		"--unsafe-no-fsync",
	}
}

// natsConfig has the settings that nats-server reads only from a file: a message must have
// room for the largest object twice.
const natsConfig = "max_payload: 4MB\n"

func natsFlags(config, dir string, port int) []string {
	return []string{
		"--config=" + config,
		"--addr=" + loopback,
		"--port=" + strconv.Itoa(port),
		"--jetstream",
		"--store_dir=" + dir,
	}
}

// servingFlags returns the flags of any API server: where it listens and whom it trusts.
// names are the names of front proxies.
func servingFlags(p *pki.PKI, pair pki.Pair, port int, names string) []string {
	return []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + pair.CertFile,
		"--tls-private-key-file=" + pair.KeyFile,
		"--client-ca-file=" + p.ClusterCA.CertFile,
		"--requestheader-client-ca-file=" + p.FrontProxyCA.CertFile,
		"--requestheader-allowed-names=" + names,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-uid-headers=X-Remote-Uid",
	}
}

// proxyFlags returns the flags of a server that identifies itself to other servers by pair.
func proxyFlags(pair pki.Pair) []string {
	return []string{
		"--proxy-client-cert-file=" + pair.CertFile,
		"--proxy-client-key-file=" + pair.KeyFile,
	}
}

// builtinFlags returns the flags of a server of the built-in resources.
func builtinFlags(p *pki.PKI, tokens string) []string {
	return []string{
		"--advertise-address=" + advertise,
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth=true",
		"--service-cluster-ip-range=" + serviceRange,
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + p.ServiceAccountPublicKey,
		"--service-account-signing-key-file=" + p.ServiceAccountKey,
		"--token-auth-file=" + tokens,
	}
}

// wholeServerFlags returns the flags of a process that serves the whole API: of
// kube-apiserver, and of triune in its place.
func wholeServerFlags(p *pki.PKI, port int, etcdURL, tokens string) []string {
	flags := servingFlags(p, p.Serving["aggregator"], port, pki.FrontProxyClientName)
	flags = append(flags, proxyFlags(p.FrontProxyClient)...)
	flags = append(flags, builtinFlags(p, tokens)...)
	return append(flags, "--etcd-servers="+etcdURL,
		// Otherwise kube-apiserver waits a minute for watches when it stops.
		"--shutdown-watch-termination-grace-period=1s")
}

func triuneFlags(p *pki.PKI, dir string, port int, etcdURL, natsURL, tokens string) []string {
	flags := servingFlags(p, p.Serving["aggregator"], port, pki.FrontProxyClientName)
	flags = append(flags, proxyFlags(p.FrontProxyClient)...)
	flags = append(flags, builtinFlags(p, tokens)...)
	flags = append(flags, "--data-dir="+dir)
	if etcdURL != "" {
		flags = append(flags, "--etcd-servers="+etcdURL)
	}
	if natsURL != "" {
		flags = append(flags, "--nats-url="+natsURL)
	}
	return flags
}

// tierOptions determines the command line of one replica.
type tierOptions struct {
	pki      *pki.PKI
	port     int
	etcdURL  string
	natsURL  string
	ownEtcd  bool // its etcd belongs to it alone
	tokens   string
	nextURLs []string // replicas of the next tier
	coreURLs []string // replicas of core, for the informers of the others
	// advertisePort is the port of the endpoints of the Service kubernetes, of aggregators.
	advertisePort int
	advertise     string // the address in these endpoints
}

func tierFlags(tier Tier, o tierOptions) []string {
	names := pki.FrontProxyClientName
	if tier == Extensions {
		names = pki.TierPrefix + string(Core) // the only front proxy
	}
	flags := servingFlags(o.pki, o.pki.Serving[string(tier)], o.port, names)
	flags = append(flags, proxyFlags(o.pki.Tier[string(tier)])...)
	flags = append(flags, "--etcd-servers="+o.etcdURL)
	if o.natsURL != "" {
		flags = append(flags, "--nats-url="+o.natsURL)
	}
	if o.ownEtcd {
		flags = append(flags, "--event-log-relay="+string(tier))
	}
	for _, url := range o.nextURLs {
		flags = append(flags, "--next-url="+url)
	}
	if len(o.nextURLs) > 0 {
		flags = append(flags, "--next-ca-file="+o.pki.ClusterCA.CertFile)
	}
	for _, url := range o.coreURLs {
		flags = append(flags, "--core-url="+url)
	}
	if len(o.coreURLs) > 0 {
		flags = append(flags, "--core-ca-file="+o.pki.ClusterCA.CertFile)
	}
	switch tier {
	case Core:
		flags = append(flags, builtinFlags(o.pki, o.tokens)...)
	default:
		// The other tiers accept these tokens without core, too.
		flags = append(flags, "--token-auth-file="+o.tokens, "--advertise-address="+o.advertise)
	}
	if o.advertisePort != 0 {
		flags = append(flags, "--advertise-port="+strconv.Itoa(o.advertisePort))
	}
	return flags
}

func controllerManagerFlags(p *pki.PKI, dir, kubeconfig string, port int) []string {
	return []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + filepath.Join(dir, "kube-controller-manager"),
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--root-ca-file=" + p.ClusterCA.CertFile,
		"--cluster-signing-cert-file=" + p.ClusterCA.CertFile,
		"--cluster-signing-key-file=" + p.ClusterCA.KeyFile,
		"--service-account-private-key-file=" + p.ServiceAccountKey,
		"--service-cluster-ip-range=" + serviceRange,
		// As kubeadm configures it.
		"--controllers=*,bootstrapsigner,tokencleaner",
	}
}

func schedulerFlags(dir, kubeconfig string, port int) []string {
	return []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + filepath.Join(dir, "kube-scheduler"),
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
	}
}

func kwokFlags(kubeconfig string, stages []string) []string {
	flags := []string{
		"--kubeconfig=" + kubeconfig,
		"--manage-all-nodes=true",
		"--node-ip=" + loopback,
		"--cidr=10.244.0.0/16",
		"--node-lease-duration-seconds=40",
	}
	for _, stage := range stages {
		flags = append(flags, "--config="+stage)
	}
	return flags
}

func certManagerFlags(kubeconfig string, port int) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--cluster-resource-namespace=default",
		"--metrics-listen-address=" + address(port),
	}
}

func sampleServerFlags(dir, kubeconfig, etcdURL string, port int) []string {
	return []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + filepath.Join(dir, "sample-apiserver"),
		"--etcd-servers=" + etcdURL,
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
	}
}

// CommandLine returns the arguments of a program of a topology, for tests of its start. It
// uses the etcd process of the cluster if there is one, and nothing else of it.
func (c *Cluster) CommandLine(program string, p *pki.PKI, dir string, port int) []string {
	switch Topology(program) {
	case KubeAPIServer:
		return wholeServerFlags(p, port, c.EtcdURL, c.Tokens)
	case Triune:
		return triuneFlags(p, filepath.Join(dir, "data"), port, c.EtcdURL, "", c.Tokens)
	}
	o := tierOptions{pki: p, port: port, etcdURL: c.EtcdURL, tokens: c.Tokens}
	switch Tier(program) {
	case Aggregator:
		o.nextURLs, o.coreURLs = c.urls(Core), c.urls(Core)
	case Core:
		o.nextURLs = c.urls(Extensions)
	case Extensions:
		o.coreURLs = c.urls(Core)
	}
	return append(tierFlags(Tier(program), o), c.etcdUserFlags(program)...)
}

func (c *Cluster) urls(tier Tier) []string {
	var all []string
	for _, r := range c.replicas[tier] {
		all = append(all, r.url)
	}
	return all
}

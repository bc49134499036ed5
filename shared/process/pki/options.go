package pki

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Authority names the certificate authority that signs a client certificate.
type Authority string

// The authorities of an installation, each with a key pair of its own.
const (
	ClusterCA    Authority = "ca"
	FrontProxyCA Authority = "front-proxy-ca"
	EtcdCA       Authority = "etcd/ca"
	NATSCA       Authority = "nats/ca"
)

// Defaults of [Options].
const (
	DefaultCALifetime   = 10 * 365 * 24 * time.Hour
	DefaultLeafLifetime = 365 * 24 * time.Hour
	DefaultRenewBefore  = 90 * 24 * time.Hour
	DefaultDomain       = "cluster.local"
)

// DefaultTiers are the tiers that get a serving certificate when
// [Options.Tiers] is empty.
var DefaultTiers = []string{"aggregator", "core", "extensions"}

// DefaultServiceIP is the address of the Service "kubernetes" in
// kube-apiserver's default service range, 10.0.0.0/24.
var DefaultServiceIP = net.IPv4(10, 0, 0, 1)

// Client is a client certificate besides those of every installation.
type Client struct {
	// Name is the file name below the directory, without extension; it may
	// contain slashes ("nats/core").
	Name string
	// CommonName is the user name; Organizations are the user's groups.
	CommonName    string
	Organizations []string
	// Authority signs the certificate; empty means [ClusterCA].
	Authority Authority
}

// Options describe the files that [Ensure] makes. The zero value describes a complete
// installation on this machine.
type Options struct {
	// Tiers get a serving certificate each, with the tier's name among its DNS
	// names. Empty means [DefaultTiers].
	Tiers []string
	// ExtraNames are additional DNS names and IP addresses of every serving certificate,
	// including those of etcd and NATS.
	ExtraNames []string
	// ServiceIPs are the addresses of the Service "kubernetes", one for each
	// service range. Empty means [DefaultServiceIP].
	ServiceIPs []net.IP
	// Domain is the cluster's DNS domain. Empty means [DefaultDomain].
	Domain string
	// Clients are additional client certificates.
	Clients []Client
	// CALifetime and LeafLifetime bound new certificates; a leaf never outlives
	// its authority. Zero means the defaults.
	CALifetime   time.Duration
	LeafLifetime time.Duration
	// RenewBefore is the time before its expiry from which a leaf is issued again. Zero
	// means [DefaultRenewBefore].
	RenewBefore time.Duration
	// Now is the clock; nil means [time.Now].
	Now func() time.Time
}

// completed returns o with all defaults, or an error for the first invalid setting.
func (o Options) completed() (Options, error) {
	if len(o.Tiers) == 0 {
		o.Tiers = DefaultTiers
	}
	if len(o.ServiceIPs) == 0 {
		o.ServiceIPs = []net.IP{DefaultServiceIP}
	}
	if o.Domain == "" {
		o.Domain = DefaultDomain
	}
	if o.CALifetime == 0 {
		o.CALifetime = DefaultCALifetime
	}
	if o.LeafLifetime == 0 {
		o.LeafLifetime = DefaultLeafLifetime
	}
	if o.RenewBefore == 0 {
		o.RenewBefore = DefaultRenewBefore
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.RenewBefore >= o.LeafLifetime {
		return o, fmt.Errorf("pki: leaves with a lifetime of %v, renewed %v before their expiry, would be renewed at every start", o.LeafLifetime, o.RenewBefore)
	}
	clients := slices.Clone(o.Clients)
	names := []string{"ca", "front-proxy-ca", "etcd/ca", "nats/ca", "sa",
		"front-proxy-client", "admin", "controller-manager", "scheduler",
		"etcd/server", "etcd/client", "nats/server", "nats/client"}
	for i := range clients {
		if clients[i].Authority == "" {
			clients[i].Authority = ClusterCA
		}
		if clients[i].CommonName == "" {
			return o, fmt.Errorf("pki: client %q has no common name", clients[i].Name)
		}
		if !slices.Contains([]Authority{ClusterCA, FrontProxyCA, EtcdCA, NATSCA}, clients[i].Authority) {
			return o, fmt.Errorf("pki: client %q wants the unknown authority %q", clients[i].Name, clients[i].Authority)
		}
	}
	o.Clients = clients
	wanted := append(slices.Clone(o.Tiers), clientNames(clients)...)
	for _, tier := range o.Tiers {
		wanted = append(wanted, "front-proxy/"+tier)
	}
	for _, name := range wanted {
		if name == "" || !filepath.IsLocal(name) || filepath.ToSlash(filepath.Clean(name)) != name {
			return o, fmt.Errorf("pki: %q is no usable file name", name)
		}
		if slices.Contains(names, name) {
			return o, fmt.Errorf("pki: the name %q is wanted twice", name)
		}
		names = append(names, name)
	}
	return o, nil
}

func clientNames(clients []Client) []string {
	names := make([]string, len(clients))
	for i, c := range clients {
		names[i] = c.Name
	}
	return names
}

// addresses are the names in a serving certificate.
type addresses struct {
	dns []string
	ips []net.IP
}

// local returns the addresses of a server on this machine, the ExtraNames, and the given
// names.
func (o Options) local(dns ...string) addresses {
	a := addresses{
		dns: append([]string{"localhost"}, dns...),
		ips: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, name := range o.ExtraNames {
		if ip := net.ParseIP(strings.Trim(name, "[]")); ip != nil {
			a.ips = append(a.ips, ip)
		} else {
			a.dns = append(a.dns, name)
		}
	}
	return a.compacted()
}

// apiserver returns the addresses of a tier: the local ones and those of the Service
// "kubernetes".
func (o Options) apiserver(tier string) addresses {
	a := o.local(tier, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc."+o.Domain)
	a.ips = append(a.ips, o.ServiceIPs...)
	return a.compacted()
}

// compacted returns a without duplicates, in the same order.
func (a addresses) compacted() addresses {
	var out addresses
	for _, name := range a.dns {
		if !slices.Contains(out.dns, name) {
			out.dns = append(out.dns, name)
		}
	}
	for _, ip := range a.ips {
		if !slices.ContainsFunc(out.ips, ip.Equal) {
			out.ips = append(out.ips, ip)
		}
	}
	return out
}

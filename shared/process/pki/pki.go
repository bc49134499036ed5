package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
)

// Pair is a certificate and its private key, as the names of two PEM files.
type Pair struct {
	CertFile string
	KeyFile  string
}

// Load reads the pair for use in a [tls.Config]. The error names the files.
func (p Pair) Load() (tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("load key pair %s: %w", p.CertFile, err)
	}
	return cert, nil
}

// PKI names the files of an installation. It is a plain value: copy and read it
// from any goroutine.
type PKI struct {
	Dir string

	ClusterCA    Pair
	FrontProxyCA Pair
	EtcdCA       Pair
	NATSCA       Pair

	// Serving holds the serving pair of each tier, by the tier's name.
	Serving map[string]Pair

	// Tier holds the client pair of each tier for the others, by the tier's name.
	Tier map[string]Pair

	FrontProxyClient  Pair
	Admin             Pair
	ControllerManager Pair
	Scheduler         Pair
	// Clients holds the pairs of [Options.Clients], by their names.
	Clients map[string]Pair

	EtcdServer Pair
	EtcdClient Pair
	NATSServer Pair
	NATSClient Pair

	// ServiceAccountKey signs ServiceAccount tokens, ServiceAccountPublicKey
	// verifies them.
	ServiceAccountKey       string
	ServiceAccountPublicKey string
}

// FrontProxyClientName is the common name of the front-proxy client
// certificate: the one value of --requestheader-allowed-names.
const FrontProxyClientName = "front-proxy-client"

// TierPrefix is the prefix of the common name of a tier's client certificate, before the name
// of the tier.
const TierPrefix = "system:triune:"

func layout(dir string, o Options) *PKI {
	p := &PKI{
		Dir:                     dir,
		ClusterCA:               pairAt(dir, string(ClusterCA)),
		FrontProxyCA:            pairAt(dir, string(FrontProxyCA)),
		EtcdCA:                  pairAt(dir, string(EtcdCA)),
		NATSCA:                  pairAt(dir, string(NATSCA)),
		Serving:                 make(map[string]Pair, len(o.Tiers)),
		Tier:                    make(map[string]Pair, len(o.Tiers)),
		FrontProxyClient:        pairAt(dir, "front-proxy-client"),
		Admin:                   pairAt(dir, "admin"),
		ControllerManager:       pairAt(dir, "controller-manager"),
		Scheduler:               pairAt(dir, "scheduler"),
		Clients:                 make(map[string]Pair, len(o.Clients)),
		EtcdServer:              pairAt(dir, "etcd/server"),
		EtcdClient:              pairAt(dir, "etcd/client"),
		NATSServer:              pairAt(dir, "nats/server"),
		NATSClient:              pairAt(dir, "nats/client"),
		ServiceAccountKey:       filepath.Join(dir, "sa.key"),
		ServiceAccountPublicKey: filepath.Join(dir, "sa.pub"),
	}
	for _, tier := range o.Tiers {
		p.Serving[tier] = pairAt(dir, tier)
		p.Tier[tier] = pairAt(dir, "front-proxy/"+tier)
	}
	for _, c := range o.Clients {
		p.Clients[c.Name] = pairAt(dir, c.Name)
	}
	return p
}

func pairAt(dir, name string) Pair {
	base := filepath.Join(dir, filepath.FromSlash(name))
	return Pair{CertFile: base + ".crt", KeyFile: base + ".key"}
}

// LoadPool reads a PEM file of CA certificates. A file without any is an error, since an
// empty pool would silently trust no one.
func LoadPool(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("load CA bundle: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("load CA bundle: %s holds no certificate", file)
	}
	return pool, nil
}

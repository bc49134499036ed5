package standalone

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"triune.dev/services/aggregator"
	"triune.dev/services/core"
	"triune.dev/services/standalone/internal/controllers"
	"triune.dev/shared/process/pki"
)

// Defaults that differ from kube-apiserver's, which has none for these or one
// that is not safe; see docs/divergences.md.
const (
	DefaultDataDir        = ".triune"
	defaultIssuer         = "https://kubernetes.default.svc.cluster.local"
	defaultServiceIPRange = "10.0.0.0/24"
)

// Options are the flags of triune: kube-apiserver's, and its own.
type Options struct {
	Core *core.Options
	// DataDir holds what triune makes for itself: etcd's and NATS's data, the PKI
	// and admin.kubeconfig.
	DataDir string
	// Controllers are the controllers to run inside, by kube-controller-manager's
	// names; none by default.
	Controllers []string

	flags *pflag.FlagSet // all of them, to tell a given value from a default
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{Core: core.NewOptions(), DataDir: DefaultDataDir}
}

// AddFlags adds the flags in their sections.
func (o *Options) AddFlags(sections *cliflag.NamedFlagSets) {
	o.Core.AddServerFlags(sections)
	fs := sections.FlagSet("triune")
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"Directory for what triune makes for itself: the data of the etcd and NATS inside, keys and certificates that no flag names, and admin.kubeconfig. With --etcd-servers there is a NATS inside only if this flag is given.")
	fs.StringSliceVar(&o.Controllers, "controllers", o.Controllers,
		fmt.Sprintf("Controllers of kube-controller-manager to run inside the process. Known are %v. Leave them off where kube-controller-manager runs.", controllers.Known()))
	o.flags = pflag.NewFlagSet("triune", pflag.ContinueOnError)
	for _, section := range sections.FlagSets {
		o.flags.AddFlagSet(section)
	}
}

// CompletedOptions can only be made by Complete.
type CompletedOptions struct{ *completedOptions }

type completedOptions struct {
	core        core.CompletedOptions
	dataDir     string
	embedEtcd   bool
	embedNATS   bool
	controllers []string
	pki         *pki.PKI // nil when every file was given
	kubeconfig  string   // "" when the clients' CA is not ours
	rootCAFile  string
}

// Complete makes what no flag has named, and fills in the rest.
func (o *Options) Complete(ctx context.Context) (CompletedOptions, error) {
	c := &completedOptions{dataDir: o.DataDir, embedEtcd: !o.given("etcd-servers")}
	// Beside an etcd that somebody else runs we keep no files that nobody has asked for:
	// programs that start API servers for tests start many in one directory. Without NATS
	// each tier watches etcd itself.
	c.embedNATS = len(o.Core.EventLog.URLs) == 0 && (c.embedEtcd || o.given("data-dir"))
	var err error
	if c.controllers, err = controllers.Resolve(o.Controllers); err != nil {
		return CompletedOptions{}, err
	}
	if c.dataDir, err = filepath.Abs(o.DataDir); err != nil {
		return CompletedOptions{}, fmt.Errorf("--data-dir=%s: %w", o.DataDir, err)
	}
	if c.embedEtcd {
		// A placeholder that satisfies validation; the member inside names its
		// socket when it has started.
		o.Core.Etcd.StorageConfig.Transport.ServerList = []string{"unix:///" + filepath.Join(c.dataDir, "etcd")}
	}
	if err := o.addPKI(c); err != nil {
		return CompletedOptions{}, err
	}
	if !o.given("service-cluster-ip-range") {
		o.Core.ServiceClusterIPRanges = defaultServiceIPRange
	}
	if c.core, err = o.Core.Complete(ctx); err != nil {
		return CompletedOptions{}, err
	}
	return CompletedOptions{c}, nil
}

func (o *Options) given(flag string) bool { return o.flags != nil && o.flags.Changed(flag) }

// addPKI makes the keys and certificates that no flag names. It makes nothing
// when all are named.
func (o *Options) addPKI(c *completedOptions) error {
	serving := !o.given("tls-cert-file") && !o.given("cert-dir")
	clients := !o.given("client-ca-file")
	// A signer has the keys, but does not say who issues its tokens.
	signer := o.given("service-account-signing-endpoint")
	accounts := !o.given("service-account-issuer") && !o.given("service-account-signing-key-file") && !signer
	if signer && !o.given("service-account-issuer") {
		o.Core.Authentication.ServiceAccounts.Issuers = []string{defaultIssuer}
	}
	// kube-apiserver does without a front proxy, too.
	frontProxy := !o.given("requestheader-client-ca-file") && !o.given("proxy-client-cert-file") &&
		(serving || clients || accounts || c.embedEtcd || o.given("data-dir"))
	if !serving && !clients && !frontProxy && !accounts {
		return nil
	}
	if err := os.MkdirAll(c.dataDir, 0o700); err != nil {
		return fmt.Errorf("--data-dir=%s: %w", o.DataDir, err)
	}
	made, err := pki.Ensure(filepath.Join(c.dataDir, "pki"), pki.Options{
		Tiers: []string{"aggregator"}, ExtraNames: o.extraNames(),
	})
	if err != nil {
		return fmt.Errorf("--data-dir=%s: %w", o.DataDir, err)
	}
	c.pki = made
	if serving {
		o.Core.SecureServing.ServerCert.CertKey.CertFile = made.Serving["aggregator"].CertFile
		o.Core.SecureServing.ServerCert.CertKey.KeyFile = made.Serving["aggregator"].KeyFile
		c.rootCAFile = made.ClusterCA.CertFile
	}
	if clients {
		o.Core.Authentication.ClientCert.ClientCA = made.ClusterCA.CertFile
		c.kubeconfig = filepath.Join(c.dataDir, "admin.kubeconfig")
	}
	if frontProxy {
		headers := o.Core.Authentication.RequestHeader
		headers.ClientCAFile = made.FrontProxyCA.CertFile
		headers.AllowedNames = []string{pki.FrontProxyClientName}
		headers.UsernameHeaders = []string{"X-Remote-User"}
		headers.UIDHeaders = []string{"X-Remote-Uid"}
		headers.GroupHeaders = []string{"X-Remote-Group"}
		headers.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
		o.Core.ProxyClientCertFile = made.FrontProxyClient.CertFile
		o.Core.ProxyClientKeyFile = made.FrontProxyClient.KeyFile
	}
	if accounts {
		o.Core.Authentication.ServiceAccounts.Issuers = []string{defaultIssuer}
		o.Core.Authentication.ServiceAccounts.KeyFiles = []string{made.ServiceAccountPublicKey}
		o.Core.ServiceAccountSigningKeyFile = made.ServiceAccountKey
	}
	return nil
}

// extraNames are the names beyond localhost by which clients may know the server.
func (o *Options) extraNames() []string {
	var names []string
	for _, address := range []net.IP{o.Core.SecureServing.BindAddress, o.Core.GenericServerRunOptions.AdvertiseAddress} {
		if address != nil && !address.IsUnspecified() && !address.IsLoopback() {
			names = append(names, address.String())
		}
	}
	if host := o.Core.GenericServerRunOptions.ExternalHost; host != "" {
		names = append(names, host)
	}
	return names
}

// Validate returns everything that is wrong, each naming its flag.
func (o CompletedOptions) Validate() []error { return o.core.Validate() }

// aggregatorProxy says how extension servers are reached.
func (o CompletedOptions) aggregatorProxy() aggregator.Proxy {
	return aggregator.Proxy{
		CertFile:         o.core.ProxyClientCertFile,
		KeyFile:          o.core.ProxyClientKeyFile,
		EndpointRouting:  o.core.EnableAggregatorRouting,
		ForwardRedirects: !o.core.AggregatorRejectForwardingRedirects,
	}
}

// writeKubeconfig writes the administrator's kubeconfig for a server that listens
// on address.
func (o CompletedOptions) writeKubeconfig(address net.Addr) error {
	if o.kubeconfig == "" || o.rootCAFile == "" {
		return nil
	}
	host, port := "127.0.0.1", 0
	if tcp, ok := address.(*net.TCPAddr); ok {
		port = tcp.Port
		if !tcp.IP.IsUnspecified() {
			host = tcp.IP.String()
		}
	}
	return pki.WriteKubeconfig(o.kubeconfig, pki.Access{
		Server: "https://" + net.JoinHostPort(host, strconv.Itoa(port)),
		CAFile: o.rootCAFile,
		Client: o.pki.Admin,
	})
}

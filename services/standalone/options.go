package standalone

import (
	"context"
	"errors"
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

// Defaults of flags for which kube-apiserver has no default or an unsafe one; see
// docs/divergences.md.
const (
	DefaultDataDir        = ".triune"
	defaultIssuer         = "https://kubernetes.default.svc.cluster.local"
	defaultServiceIPRange = "10.0.0.0/24"
)

// Options are the flags of triune: those of core, and its own.
type Options struct {
	Core *core.Options
	// DataDir is the directory of the files that triune makes: the data of etcd and NATS,
	// the PKI and admin.kubeconfig.
	DataDir string
	// Controllers are the controllers to run in the process, by their names in
	// kube-controller-manager; none by default.
	Controllers []string
	// SigningCertFile and SigningKeyFile are the CA of the controller csrsigning. By default
	// it is the one in DataDir.
	SigningCertFile, SigningKeyFile string
	// AsKubeAPIServer takes nothing for granted that kube-apiserver does not: it makes no
	// data, keys or certificates in DataDir, and what they would be for must be given.
	AsKubeAPIServer bool

	flags *pflag.FlagSet // all flags, to distinguish given values from defaults
}

// NewOptions returns the default options.
func NewOptions() *Options {
	return &Options{Core: core.NewOptions(), DataDir: DefaultDataDir}
}

// AddFlags adds the flags in their sections.
func (o *Options) AddFlags(sections *cliflag.NamedFlagSets) {
	o.Core.AddServerFlags(sections)
	fs := sections.FlagSet("triune")
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"Directory of the files that triune makes: the data of the etcd and NATS in the process, keys and certificates that no flag names, and admin.kubeconfig. With --etcd-servers, NATS runs in the process only if this flag is given.")
	fs.StringSliceVar(&o.Controllers, "controllers", o.Controllers,
		fmt.Sprintf("Controllers of kube-controller-manager to run inside the process. Known are %v. Of several triunes with the same etcd, one runs them at a time. Do not run them beside a kube-controller-manager.", controllers.Known()))
	fs.StringVar(&o.SigningCertFile, "cluster-signing-cert-file", o.SigningCertFile,
		"Certificate of the CA that signs CertificateSigningRequests, in PEM. By default the CA in --data-dir, unless --client-ca-file is given.")
	fs.StringVar(&o.SigningKeyFile, "cluster-signing-key-file", o.SigningKeyFile,
		"Private key of --cluster-signing-cert-file.")
	o.flags = pflag.NewFlagSet("triune", pflag.ContinueOnError)
	for _, section := range sections.FlagSets {
		o.flags.AddFlagSet(section)
	}
}

// CompletedOptions are made by Complete only.
type CompletedOptions struct{ *completedOptions }

type completedOptions struct {
	core        core.CompletedOptions
	dataDir     string
	embedEtcd   bool
	embedNATS   bool
	controllers []string
	pki         *pki.PKI // nil if all files were given
	kubeconfig  string   // "" if --client-ca-file was given
	rootCAFile  string
	// signingCertFile and signingKeyFile are the CA of csrsigning.
	signingCertFile, signingKeyFile string
}

// Complete makes the keys and certificates that no flag names, and derives settings that
// were not given.
func (o *Options) Complete(ctx context.Context) (CompletedOptions, error) {
	c := &completedOptions{
		dataDir: o.DataDir, embedEtcd: !o.given("etcd-servers") && !o.AsKubeAPIServer,
		signingCertFile: o.SigningCertFile, signingKeyFile: o.SigningKeyFile,
	}
	// With --etcd-servers, do not write to the default directory: programs that start API
	// servers for tests start many in one directory. Without NATS each tier watches etcd
	// itself.
	c.embedNATS = len(o.Core.EventLog.URLs) == 0 && (c.embedEtcd || o.given("data-dir"))
	var err error
	if c.controllers, err = controllers.Resolve(o.Controllers); err != nil {
		return CompletedOptions{}, err
	}
	if c.dataDir, err = filepath.Abs(o.DataDir); err != nil {
		return CompletedOptions{}, fmt.Errorf("--data-dir=%s: %w", o.DataDir, err)
	}
	if c.embedEtcd {
		// A placeholder for validation; build replaces it by the socket of the member.
		o.Core.Etcd.StorageConfig.Transport.ServerList = []string{"unix:///" + filepath.Join(c.dataDir, "etcd")}
	}
	if !o.AsKubeAPIServer {
		if err := o.addPKI(c); err != nil {
			return CompletedOptions{}, err
		}
		if !o.given("service-cluster-ip-range") {
			o.Core.ServiceClusterIPRanges = defaultServiceIPRange
		}
	}
	if c.core, err = o.Core.Complete(ctx); err != nil {
		return CompletedOptions{}, err
	}
	return CompletedOptions{c}, nil
}

func (o *Options) given(flag string) bool { return o.flags != nil && o.flags.Changed(flag) }

// addPKI makes the keys and certificates that no flag names. If flags name all of them, it
// writes nothing.
func (o *Options) addPKI(c *completedOptions) error {
	serving := !o.given("tls-cert-file") && !o.given("cert-dir")
	clients := !o.given("client-ca-file")
	// An external signer has the keys, but does not name the issuer.
	signer := o.given("service-account-signing-endpoint")
	accounts := !o.given("service-account-issuer") && !o.given("service-account-signing-key-file") && !signer
	if signer && !o.given("service-account-issuer") {
		o.Core.Authentication.ServiceAccounts.Issuers = []string{defaultIssuer}
	}
	// As with kube-apiserver, a front proxy is optional.
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
		if o.SigningCertFile == "" && o.SigningKeyFile == "" {
			c.signingCertFile, c.signingKeyFile = made.ClusterCA.CertFile, made.ClusterCA.KeyFile
		}
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

// extraNames returns the names besides localhost by which clients may reach the server.
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

// Validate returns all problems, each naming its flag.
func (o CompletedOptions) Validate() []error {
	problems := o.core.Validate()
	if (o.signingCertFile == "") != (o.signingKeyFile == "") {
		problems = append(problems, errors.New("--cluster-signing-cert-file and --cluster-signing-key-file must be given together"))
	}
	return problems
}

// aggregatorProxy returns how the aggregator connects to extension servers.
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

package options

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/cert"

	"triune.dev/shared/transport/nexttier"
	"triune.dev/shared/transport/tierclient"
)

// Peer holds the flags that say where another tier is.
type Peer struct {
	// URLs are those of its replicas, or of DNS names with an address for each replica.
	URLs []string
	// CAFile holds the CAs of the replicas' serving certificates.
	CAFile string
	// ServerName is the name in those certificates. Empty means the URL's host.
	ServerName string

	// flag is the prefix of the flags' names, tier the name of the other tier.
	flag, tier string
}

func (p *Peer) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&p.URLs, p.flag+"-url", p.URLs, fmt.Sprintf(
		"URL (https://host:port) of a replica of the %s tier, or of a DNS name with one address for each replica. Repeat the flag for several.", p.tier))
	fs.StringVar(&p.CAFile, p.flag+"-ca-file", p.CAFile, fmt.Sprintf(
		"File with the CA certificates that verify the serving certificates of the %s tier.", p.tier))
	fs.StringVar(&p.ServerName, p.flag+"-server-name", p.ServerName, fmt.Sprintf(
		"Name in the serving certificates of the %s tier. By default the host of the URL.", p.tier))
}

func (p *Peer) validate() []error {
	var problems []error
	if len(p.URLs) == 0 {
		return []error{fmt.Errorf("--%s-url must be given: it says where the %s tier is", p.flag, p.tier)}
	}
	for _, raw := range p.URLs {
		if u, err := url.Parse(raw); err != nil || u.Scheme != "https" || u.Hostname() == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
			problems = append(problems, fmt.Errorf("--%s-url=%s is not of the form https://host:port", p.flag, raw))
		}
	}
	if p.CAFile == "" {
		problems = append(problems, fmt.Errorf("--%s-ca-file must be given with --%s-url", p.flag, p.flag))
	} else if _, err := cert.CertsFromFile(p.CAFile); err != nil {
		problems = append(problems, fmt.Errorf("--%s-ca-file=%s: %w", p.flag, p.CAFile, err))
	}
	return problems
}

func (p *Peer) equal(other *Peer) bool {
	return slices.Equal(p.URLs, other.URLs) && p.CAFile == other.CAFile && p.ServerName == other.ServerName
}

// proxyClient is the front-proxy certificate that authenticates this server to others.
type proxyClient struct {
	CertFile, KeyFile string
}

func (c *proxyClient) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.CertFile, "proxy-client-cert-file", c.CertFile,
		"Client certificate to assert users with, to other tiers and to extension API servers. It must be signed by a CA of their --requestheader-client-ca-file.")
	fs.StringVar(&c.KeyFile, "proxy-client-key-file", c.KeyFile,
		"Private key of --proxy-client-cert-file.")
}

func (c *proxyClient) validate() []error {
	var problems []error
	if c.CertFile == "" {
		problems = append(problems, errors.New("--proxy-client-cert-file must be given: it authenticates this tier to others"))
	}
	if c.KeyFile == "" {
		problems = append(problems, errors.New("--proxy-client-key-file must be given with --proxy-client-cert-file"))
	}
	return problems
}

// forwardsCredentials reports whether requests to p carry the credentials of clients instead
// of authenticated users. Requests to core do, if the proxy client certificate names a tier.
func (o *Options) forwardsCredentials(p *Peer) (bool, error) {
	if p.tier != core {
		return false, nil
	}
	certificates, err := cert.CertsFromFile(o.proxyClient.CertFile)
	if err != nil {
		return false, fmt.Errorf("--proxy-client-cert-file=%s: %w", o.proxyClient.CertFile, err)
	}
	_, ok := tierclient.TierOf(certificates[0])
	return ok, nil
}

// refusal answers a request that could not be forwarded.
type refusal func(w http.ResponseWriter, req *http.Request, err *apierrors.StatusError)

// proxy returns the proxy to the peer. refuse may be nil.
func (p *Peer) proxy(o *Options, maxInFlight int, refuse refusal) (*nexttier.Proxy, error) {
	forward, err := o.forwardsCredentials(p)
	if err != nil {
		return nil, err
	}
	proxy, err := nexttier.New(nexttier.Config{
		Tier:               p.tier,
		Targets:            p.URLs,
		ServerName:         p.ServerName,
		CAFile:             p.CAFile,
		CertFile:           o.ProxyClientCertFile(),
		KeyFile:            o.ProxyClientKeyFile(),
		ForwardCredentials: forward,
		MaxInFlight:        maxInFlight,
		OnError:            refuse,
		Registerer:         o.Registerer,
		Headers: nexttier.Headers{
			User:        o.Authentication.RequestHeader.UsernameHeaders,
			UID:         o.Authentication.RequestHeader.UIDHeaders,
			Group:       o.Authentication.RequestHeader.GroupHeaders,
			ExtraPrefix: o.Authentication.RequestHeader.ExtraHeaderPrefixes,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("--%s-url=%v: %w", p.flag, p.URLs, err)
	}
	return proxy, nil
}

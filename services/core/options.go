package core

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/client-go/util/keyutil"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	triuneoptions "triune.dev/shared/program/options"
	"triune.dev/shared/server/apiserver"
	"triune.dev/shared/server/authn"
	"triune.dev/shared/server/authz"
)

// Options are the flags of core: all of kube-apiserver's, and Triune's own.
type Options struct {
	*options.ServerRunOptions
	// NextURLs are those of the replicas of the next tier, or of DNS names with an address
	// for each. If it is empty, core answers 404 to requests that it does not own.
	NextURLs []string
	// NextCAFile verifies the serving certificates of the next tier.
	NextCAFile string
	// EventLog holds the flags of the event log. By default core may write the streams of
	// all tiers.
	EventLog *triuneoptions.EventLog
	// HTTP2 holds the flag of the HTTP/2 server.
	HTTP2 *triuneoptions.HTTP2
	// InsecureLoopbackPort is the port for requests without authentication; 0 for none.
	InsecureLoopbackPort int
}

// NewOptions returns the defaults, which are kube-apiserver's.
func NewOptions() *Options {
	log := triuneoptions.NewEventLog()
	log.Relay = []string{"aggregator", Tier, "extensions"}
	return &Options{ServerRunOptions: options.NewServerRunOptions(), EventLog: log, HTTP2: triuneoptions.NewHTTP2()}
}

// AddFlags adds the flags in their sections.
func (o *Options) AddFlags(sections *cliflag.NamedFlagSets) {
	o.AddServerFlags(sections)
	fs := sections.FlagSet("next tier")
	fs.StringSliceVar(&o.NextURLs, "next-url", o.NextURLs,
		"URL of a replica of the next tier, which gets requests that core does not own, or of a DNS name with one address for each replica. Repeat the flag for several.")
	fs.StringVar(&o.NextCAFile, "next-ca-file", o.NextCAFile,
		"File with the CA certificates that verify the serving certificates of the next tier.")
}

// AddServerFlags adds the flags besides those of the next tier.
func (o *Options) AddServerFlags(sections *cliflag.NamedFlagSets) {
	flags := o.ServerRunOptions.Flags()
	for _, name := range flags.Order {
		sections.FlagSet(name).AddFlagSet(flags.FlagSets[name])
	}
	o.HTTP2.AddFlags(sections.FlagSet("secure serving"))
	sections.FlagSet("insecure serving").IntVar(&o.InsecureLoopbackPort, "insecure-loopback-port", o.InsecureLoopbackPort,
		"Port at which everybody on this machine has all rights, without TLS and authentication. It needs a loopback address as --bind-address. 0 turns it off.")
	o.EventLog.AddFlags(sections.FlagSet("event log"))
	mode := sections.FlagSet("authorization").Lookup("authorization-mode")
	mode.Usage = strings.ReplaceAll(mode.Usage, "Defaults to AlwaysAllow", "Defaults to Node,RBAC")
	// The reader includes flags that are added to the sections later.
	o.Flagz = flagz.NamedFlagSetsReader{FlagSets: *sections}
}

// CompletedOptions are made by Complete only.
type CompletedOptions struct {
	options.CompletedOptions
	next     nextOptions
	eventLog *triuneoptions.EventLog
	http2    *triuneoptions.HTTP2
	// insecureLoopbackPort is Options.InsecureLoopbackPort.
	insecureLoopbackPort int
}

type nextOptions struct {
	urls   []string
	caFile string
}

// Complete derives settings that were not given from the flags and the machine.
func (o *Options) Complete(ctx context.Context) (CompletedOptions, error) {
	// Upstream also reads this file in Complete, but its error does not name the flag.
	if file := o.ServiceAccountSigningKeyFile; file != "" {
		if _, err := keyutil.PrivateKeyFromFile(file); err != nil {
			return CompletedOptions{}, fmt.Errorf("--service-account-signing-key-file=%s: %w", file, err)
		}
	}
	signer := o.ServiceAccountSigningEndpoint
	if files := o.Authentication.ServiceAccounts.KeyFiles; signer != "" && len(files) > 0 {
		// Upstream checks this only after a response of the signer.
		return CompletedOptions{}, fmt.Errorf("--service-account-signing-endpoint=%s and --service-account-key-file=%s are mutually exclusive: the signer names the keys that verify its tokens",
			signer, strings.Join(files, ","))
	}
	// Upstream's default is AlwaysAllow.
	if o.Authorization.AuthorizationConfigurationFile == "" && len(o.Authorization.Modes) == 0 {
		o.Authorization.Modes = []string{authz.Node, authz.RBAC}
	}
	completed, err := o.ServerRunOptions.Complete(ctx)
	switch {
	case err != nil && signer != "" && strings.Contains(err.Error(), "external-jwt-signer"):
		return CompletedOptions{}, fmt.Errorf("--service-account-signing-endpoint=%s: %w", signer, err)
	case err != nil:
		return CompletedOptions{}, err
	}
	return CompletedOptions{completed, nextOptions{o.NextURLs, o.NextCAFile}, o.EventLog, o.HTTP2, o.InsecureLoopbackPort}, nil
}

// EventLog returns the flags of the event log.
func (o CompletedOptions) EventLog() *triuneoptions.EventLog { return o.eventLog }

// HTTP2Server returns the HTTP/2 server of the secure port.
func (o CompletedOptions) HTTP2Server() apiserver.HTTP2Server {
	return apiserver.HTTP2Server(o.http2.Server)
}

// Validate returns all problems, each naming its flag.
func (o CompletedOptions) Validate() []error {
	errs := append(o.CompletedOptions.Validate(), o.eventLog.Validate()...)
	errs = append(errs, o.http2.Validate()...)
	errs = append(errs, o.validateInsecure()...)
	if file := o.Authorization.AuthorizationConfigurationFile; file != "" {
		nameFile(errs, o.Authorization.Validate(), file)
	}
	// Upstream reads this file when it makes the authenticators, without naming the flag.
	if _, err := (authn.SharedFlags{ConfigFile: o.Authentication.AuthenticationConfigFile}).Settings(); err != nil {
		errs = append(errs, err)
	}
	for _, target := range o.next.urls {
		if parsed, err := url.Parse(target); err != nil || parsed.Scheme != "https" || parsed.Host == "" {
			errs = append(errs, errors.New("--next-url: "+target+" is not an https URL"))
		}
	}
	if len(o.next.urls) > 0 {
		if o.ProxyClientCertFile == "" || o.ProxyClientKeyFile == "" {
			errs = append(errs, errors.New("--next-url needs --proxy-client-cert-file and --proxy-client-key-file, with which core proves itself to the next tier"))
		}
		if o.next.caFile == "" {
			errs = append(errs, errors.New("--next-url needs --next-ca-file"))
		}
	}
	return errs
}

// validateInsecure returns what is wrong with --insecure-loopback-port.
func (o CompletedOptions) validateInsecure() []error {
	port, bind := o.insecureLoopbackPort, o.SecureServing.BindAddress
	switch {
	case port == 0:
		return nil
	case port < 0 || port > 65535:
		return []error{fmt.Errorf("--insecure-loopback-port=%d is not between 0 and 65535", port)}
	case !bind.IsLoopback():
		return []error{fmt.Errorf("--insecure-loopback-port=%d needs a loopback address as --bind-address, not %s: the server must be for this machine alone", port, bind)}
	case port == o.SecureServing.BindPort:
		return []error{fmt.Errorf("--insecure-loopback-port=%d is also --secure-port", port)}
	}
	return nil
}

// nameFile puts the flag of an AuthorizationConfiguration before those of errs that are
// about the content of the file.
func nameFile(errs, authorization []error, file string) {
	for i, err := range errs {
		text := err.Error()
		if !strings.Contains(text, "--authorization-") && slices.ContainsFunc(authorization, func(a error) bool { return a.Error() == text }) {
			errs[i] = fmt.Errorf("--authorization-config=%s: %w", file, err)
		}
	}
}

package options

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/server/flagz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"triune.dev/shared/server/authn"
	"triune.dev/shared/server/authz"
)

const (
	// securePort and certDir are kube-apiserver's.
	securePort = 6443
	certDir    = "/var/run/kubernetes"
	// storagePrefix is kube-apiserver's prefix of the keys of objects in etcd.
	storagePrefix = "/registry"
	core          = "core"
)

// Tier describes the tier whose options these are.
type Tier struct {
	// Name is the name of this tier: "aggregator" or "extensions".
	Name string
	// Next is the name of the tier behind this one; empty for the last.
	Next string
	// Scheme and Codecs know the API groups that this tier serves.
	Scheme *runtime.Scheme
	Codecs serializer.CodecFactory
	// Resources lists the group-versions that it serves by default; --runtime-config
	// changes them.
	Resources *serverstorage.ResourceConfig
	// Admission returns the options of the admission plugins of this tier. Nil means no
	// admission and no flags for it.
	Admission func() *genericoptions.AdmissionOptions
	// Initializers returns initializers of these plugins besides those for clients of
	// core, informers and webhooks. May be nil.
	Initializers func(*Config) ([]admission.PluginInitializer, error)
}

// Options are the flags. Fields may be changed before AddFlags, to change
// defaults.
type Options struct {
	Tier Tier

	Server         *genericoptions.ServerRunOptions
	Etcd           *genericoptions.EtcdOptions
	SecureServing  *genericoptions.SecureServingOptions
	Audit          *genericoptions.AuditOptions
	Features       *genericoptions.FeatureOptions
	Admission      *genericoptions.AdmissionOptions
	Authentication *authn.Options
	Authorization  *authz.Options
	APIEnablement  *genericoptions.APIEnablementOptions
	EgressSelector *genericoptions.EgressSelectorOptions
	Metrics        *metrics.Options
	Logs           *logs.Options
	Traces         *genericoptions.TracingOptions
	EventLog       *EventLog
	HTTP2          *HTTP2
	// EndpointRouting makes the tier send requests to endpoints of a Service instead of its
	// cluster IP (--enable-aggregator-routing).
	EndpointRouting bool

	// Registerer takes the metrics of the connections to other tiers and of the age of
	// the RBAC rules. The default is the registerer of /metrics.
	Registerer prometheus.Registerer

	// Next is nil for the last tier of the chain.
	Next *Peer
	// Core is where core is. Complete sets it to Next if that is core and Core is not
	// set.
	Core *Peer

	proxyClient proxyClient
	flags       flagz.Reader // nil before AddFlags
}

// New returns the default options of a tier.
func New(tier Tier) *Options {
	o := &Options{
		Tier:           tier,
		Server:         genericoptions.NewServerRunOptions(),
		Etcd:           genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig(storagePrefix, nil)),
		SecureServing:  genericoptions.NewSecureServingOptions(),
		Audit:          genericoptions.NewAuditOptions(),
		Features:       genericoptions.NewFeatureOptions(),
		Authentication: authn.NewOptions(),
		Authorization:  authz.NewOptions(),
		APIEnablement:  genericoptions.NewAPIEnablementOptions(),
		EgressSelector: genericoptions.NewEgressSelectorOptions(),
		Metrics:        metrics.NewOptions(),
		Logs:           logs.NewOptions(),
		Traces:         genericoptions.NewTracingOptions(),
		EventLog:       NewEventLog(),
		HTTP2:          NewHTTP2(),
		Registerer:     legacyregistry.Registerer(),
		Core:           &Peer{flag: "core", tier: core},
	}
	o.SecureServing.BindPort = securePort
	o.SecureServing.Required = true
	o.SecureServing.ServerCert.CertDirectory = certDir
	if tier.Admission != nil {
		o.Admission = tier.Admission()
	}
	if tier.Next != "" {
		o.Next = &Peer{flag: "next", tier: tier.Next}
	}
	return o
}

// ProxyClientCertFile returns the file of the front-proxy client certificate,
// --proxy-client-cert-file.
func (o *Options) ProxyClientCertFile() string { return o.proxyClient.CertFile }

// ProxyClientKeyFile returns the file of its key, --proxy-client-key-file.
func (o *Options) ProxyClientKeyFile() string { return o.proxyClient.KeyFile }

// AddFlags adds the flags in kube-apiserver's sections, and those of other tiers in a
// section of their own.
func (o *Options) AddFlags(fss *cliflag.NamedFlagSets) {
	o.Server.AddUniversalFlags(fss.FlagSet("generic"))
	o.Etcd.AddFlags(fss.FlagSet("etcd"))
	o.SecureServing.AddFlags(fss.FlagSet("secure serving"))
	o.HTTP2.AddFlags(fss.FlagSet("secure serving"))
	o.Audit.AddFlags(fss.FlagSet("auditing"))
	o.Features.AddFlags(fss.FlagSet("features"))
	o.Authentication.AddFlags(fss.FlagSet("authentication"))
	o.Authorization.AddFlags(fss.FlagSet("authorization"))
	o.APIEnablement.AddFlags(fss.FlagSet("API enablement"))
	o.EgressSelector.AddFlags(fss.FlagSet("egress selector"))
	if o.Admission != nil {
		o.Admission.AddFlags(fss.FlagSet("admission"))
	}
	o.Metrics.AddFlags(fss.FlagSet("metrics"))
	logsapi.AddFlags(o.Logs, fss.FlagSet("logs"))
	o.Traces.AddFlags(fss.FlagSet("traces"))
	o.EventLog.AddFlags(fss.FlagSet("event log"))
	tiers := fss.FlagSet("tiers")
	if o.Next != nil {
		o.Next.addFlags(tiers)
	}
	o.Core.addFlags(tiers)
	o.proxyClient.addFlags(tiers)
	fss.FlagSet("misc").BoolVar(&o.EndpointRouting, "enable-aggregator-routing", o.EndpointRouting,
		"Send requests for webhooks, and those for remote APIServices, to the endpoints of their Service, balanced, instead of to its cluster IP.")
	// The reader includes flags that are added to the sections later.
	o.flags = flagz.NamedFlagSetsReader{FlagSets: *fss}
}

// Complete derives settings that were not given from other flags and the machine.
func (o *Options) Complete(context.Context) error {
	if err := o.Server.Complete(); err != nil {
		return err
	}
	if err := o.Server.DefaultAdvertiseAddress(o.SecureServing); err != nil {
		// This machine has no route to others, so only local clients will connect.
		o.Server.AdvertiseAddress = net.IPv4(127, 0, 0, 1)
		if bind := o.SecureServing.BindAddress; !bind.IsUnspecified() {
			o.Server.AdvertiseAddress = bind
		}
	}
	if o.Server.ExternalHost == "" {
		o.Server.ExternalHost = o.Server.AdvertiseAddress.String()
		if o.Server.AdvertiseAddress.IsLoopback() {
			if name, err := os.Hostname(); err == nil {
				o.Server.ExternalHost = name
			}
		}
	}
	if o.Server.RequestTimeout > 0 {
		// A watch must be able to start at the revision of a list that took the whole
		// timeout.
		o.Etcd.StorageConfig.EventsHistoryWindow = max(o.Etcd.StorageConfig.EventsHistoryWindow, o.Server.RequestTimeout+15*time.Second)
	}
	if len(o.Core.URLs) == 0 && o.nextIsCore() {
		o.Core.URLs, o.Core.ServerName = o.Next.URLs, o.Next.ServerName
	}
	if o.Core.CAFile == "" && o.Next != nil {
		o.Core.CAFile = o.Next.CAFile
	}
	return nil
}

func (o *Options) nextIsCore() bool { return o.Next != nil && o.Next.tier == core }

// Validate returns all problems, each naming its flag. Call it after Complete.
func (o *Options) Validate() []error {
	problems := slices.Concat(
		withFlags("generic flags", o.Server.Validate()),
		withFlags("--etcd-*", o.Etcd.Validate()),
		withFlags("--secure-port", o.SecureServing.Validate()),
		o.validateServing(),
		o.HTTP2.Validate(),
		withFlags("--audit-*", o.Audit.Validate()),
		o.Features.Validate(),
		withFlags("--requestheader-*", o.Authentication.Validate()),
		o.Authorization.Validate(),
		withFlags("--egress-selector-config-file", o.EgressSelector.Validate()),
		withFlags("metrics flags", o.Metrics.Validate()),
		withFlags("--tracing-config-file", o.Traces.Validate()),
		o.EventLog.Validate(),
	)
	if o.Tier.Scheme != nil {
		problems = append(problems, withFlags("--runtime-config", o.APIEnablement.Validate(o.Tier.Scheme))...)
	}
	if o.Admission != nil {
		problems = append(problems, withFlags("--enable-admission-plugins, --disable-admission-plugins", o.Admission.Validate())...)
	}
	if o.Features.EnablePriorityAndFairness && o.Server.MaxRequestsInFlight+o.Server.MaxMutatingRequestsInFlight <= 0 {
		problems = append(problems, fmt.Errorf("--max-requests-inflight=%d and --max-mutating-requests-inflight=%d must have a positive sum with --enable-priority-and-fairness",
			o.Server.MaxRequestsInFlight, o.Server.MaxMutatingRequestsInFlight))
	}
	if o.Next != nil {
		problems = append(problems, o.Next.validate()...)
	}
	if !o.nextIsCore() || !o.Core.equal(&Peer{URLs: o.Next.URLs, CAFile: o.Next.CAFile, ServerName: o.Next.ServerName}) {
		problems = append(problems, o.Core.validate()...)
	}
	return append(problems, o.proxyClient.validate()...)
}

// withFlags puts flags in front of those problems that name no flag.
func withFlags(flags string, problems []error) []error {
	for i, problem := range problems {
		if !strings.Contains(problem.Error(), "--") {
			problems[i] = fmt.Errorf("%s: %w", flags, problem)
		}
	}
	return problems
}

// validateServing checks settings that k8s.io/apiserver checks only when it opens the
// listener.
func (o *Options) validateServing() []error {
	var problems []error
	files := o.SecureServing.ServerCert.CertKey
	if (files.CertFile == "") != (files.KeyFile == "") {
		problems = append(problems, fmt.Errorf("--tls-cert-file=%s and --tls-private-key-file=%s must be given together", files.CertFile, files.KeyFile))
	}
	if _, err := cliflag.TLSCipherSuites(o.SecureServing.CipherSuites); err != nil {
		problems = append(problems, fmt.Errorf("--tls-cipher-suites=%s: %w", strings.Join(o.SecureServing.CipherSuites, ","), err))
	}
	if _, err := cliflag.TLSVersion(o.SecureServing.MinTLSVersion); err != nil {
		problems = append(problems, fmt.Errorf("--tls-min-version=%s: %w", o.SecureServing.MinTLSVersion, err))
	}
	return problems
}

// dnsNames returns the names in a generated serving certificate, including those of the
// Service "kubernetes".
func dnsNames(tier string) []string {
	return []string{"kubernetes.default.svc", "kubernetes.default", "kubernetes", "triune-" + tier}
}

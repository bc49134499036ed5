package core

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/filters"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/component-base/metrics/legacyregistry"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	controlplaneadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	kubeadmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"triune.dev/shared/program/options"
	triuneadmission "triune.dev/shared/server/admission"
	"triune.dev/shared/server/apiserver"
	"triune.dev/shared/server/authn"
	"triune.dev/shared/server/authz"
	"triune.dev/shared/server/fairness"
	"triune.dev/shared/storage"
)

// Environment holds the settings of core that are no flags.
type Environment struct {
	// Next is the tier behind core; nil for none.
	Next *apiserver.Next
	// Head returns the handler of the tier at the head of the process. That tier runs the
	// parts that the tiers share (see apiserver.DelegateConfig), and core's own clients
	// call it, so that controllers and admission plugins see the same API as clients. Nil
	// means that core is the head.
	Head func() http.Handler
	// Etcd is the client of an etcd in the process. Nil means to dial --etcd-servers.
	Etcd *clientv3.Client
	// EventLog configures the event log of all tiers of the process. Nil means that of
	// core alone, from its flags.
	EventLog *storage.EventLog
}

// Config is the configuration of a Server.
type Config struct {
	// Generic configures authentication, authorization, audit, limits and admission, which
	// the tiers of a process share.
	Generic   *genericapiserver.Config
	Informers informers.SharedInformerFactory
	// Services resolves Services of webhooks and APIServices to addresses.
	Services webhook.ServiceResolver
	// Unsecured is the listener of --insecure-loopback-port, for the tier at the head of the
	// process; nil for none.
	Unsecured net.Listener

	storage      *storage.Storage
	options      CompletedOptions
	environment  Environment
	admission    *triuneadmission.Chain
	controlPlane controlplane.Config
	// server is set by New for the loopback client, which informers and plugins use from
	// other goroutines.
	server atomic.Pointer[apiserver.Server]
	// running is closed by Run.
	running chan struct{}
}

// CustomStorage returns storage options over core's etcd for the other tiers of the process,
// which set the encoding of their objects.
func (c *Config) CustomStorage() generic.RESTOptionsGetter { return c.storage.Custom() }

// WebhookCredentials returns the resolver of the credentials of webhooks.
func (c *Config) WebhookCredentials() webhook.AuthenticationInfoResolverWrapper {
	g := c.Generic
	return webhook.NewDefaultAuthenticationInfoResolverWrapper(
		c.controlPlane.ControlPlane.ProxyTransport, g.EgressSelector, g.LoopbackClientConfig, g.TracerProvider)
}

// Config returns the configuration that the options describe. It opens the listener and the
// storage.
func (o CompletedOptions) Config(ctx context.Context, environment Environment) (*Config, error) {
	c := &Config{options: o, environment: environment, running: make(chan struct{})}
	steps := []func(context.Context) error{
		c.addServing, c.addUnsecured, c.addLoopback, c.addLimits, c.addAPIs, c.addOpenAPI, c.addStorage,
		c.addAuthentication, c.addAuthorization, c.addAudit, c.addControlPlane, c.completeAuthentication, c.addAdmission,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Config) addServing(context.Context) error {
	c.Generic = genericapiserver.NewConfig(legacyscheme.Codecs)
	c.Generic.FeatureGate = utilfeature.DefaultFeatureGate
	c.Generic.Flagz = c.options.Flagz
	c.Generic.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
	if err := c.options.GenericServerRunOptions.ApplyTo(c.Generic); err != nil {
		return err
	}
	serving := c.options.SecureServing.SecureServingOptions
	port := serving.BindPort
	if err := serving.ApplyTo(&c.Generic.SecureServing); err != nil {
		serving.BindPort = port // ApplyTo has set it to 0
		return fmt.Errorf("--bind-address=%s --secure-port=%d: %w", serving.BindAddress, port, err)
	}
	return nil
}

// addUnsecured opens the listener of --insecure-loopback-port.
func (c *Config) addUnsecured(context.Context) (err error) {
	port := c.options.insecureLoopbackPort
	if port == 0 {
		return nil
	}
	c.Unsecured, err = net.Listen("tcp", net.JoinHostPort(c.options.SecureServing.BindAddress.String(), strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("--insecure-loopback-port=%d: %w", port, err)
	}
	return nil
}

func (c *Config) addLimits(context.Context) error {
	client, err := kubernetes.NewForConfig(c.Generic.LoopbackClientConfig)
	if err != nil {
		return err
	}
	if err := fairness.Apply(c.options.Features, c.Generic, client, c.Informers); err != nil {
		return err
	}
	if err := c.options.EgressSelector.ApplyTo(c.Generic); err != nil {
		return err
	}
	if err := c.options.Traces.ApplyTo(c.Generic.EgressSelector, c.Generic); err != nil {
		return err
	}
	capabilities.Setup(c.options.AllowPrivileged, c.options.MaxConnectionBytesPerSec)
	metricsfeatures.ApplyFeatureGates(utilfeature.DefaultFeatureGate)
	options.ApplyMetrics(c.options.Metrics)
	serviceaccount.RegisterMetrics()
	return nil
}

func (c *Config) addAPIs(context.Context) error {
	enabled := controlplane.DefaultAPIResourceConfigSource()
	c.Generic.MergedResourceConfig = enabled
	return c.options.APIEnablement.ApplyTo(c.Generic, enabled, legacyscheme.Scheme)
}

func (c *Config) addOpenAPI(context.Context) error {
	// These only collect the security definitions of the authenticators. The documents are
	// built at the first request.
	c.Generic.OpenAPIConfig = &openapicommon.Config{}
	c.Generic.OpenAPIV3Config = &openapicommon.OpenAPIV3Config{}
	return nil
}

func (c *Config) addStorage(ctx context.Context) error {
	etcd := *c.options.Etcd
	// An etcd in the process is not reached over a network.
	if c.Generic.EgressSelector != nil && c.environment.Etcd == nil {
		etcd.StorageConfig.Transport.EgressLookup = c.Generic.EgressSelector.Lookup
	}
	etcd.StorageConfig.Transport.TracerProvider = c.Generic.TracerProvider
	builder := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(c.Generic.EffectiveVersion)
	builder.APIResourceConfig = c.Generic.MergedResourceConfig
	builder.DefaultResourceEncoding.SetEffectiveVersion(c.Generic.EffectiveVersion)
	factory, err := builder.Complete(&etcd).New()
	if err != nil {
		return fmt.Errorf("storage factory: %w", err)
	}
	factory.StorageConfig.StorageObjectCountTracker = c.Generic.StorageObjectCountTracker
	// Triune's storage compacts etcd, so the storage that upstream makes of this factory
	// (of allocators and master leases) must not.
	factory.StorageConfig.CompactionInterval = 0
	log := c.environment.EventLog
	if log == nil {
		own, err := c.options.eventLog.Open(Tier, legacyregistry.Registerer())
		if err != nil {
			return err
		}
		log = &own
	}
	c.storage, err = storage.Open(ctx, storage.Config{
		Generic: c.Generic, Etcd: &etcd, Factory: factory, Selectable: selectable, Client: c.environment.Etcd, EventLog: *log,
	})
	if err != nil {
		return err
	}
	c.Generic.RESTOptionsGetter = c.storage.RESTOptions()
	c.controlPlane.ControlPlane.StorageFactory = factory
	return nil
}

func (c *Config) addAuthentication(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Generic.LoopbackClientConfig)
	if err != nil {
		return err
	}
	authentication := &c.Generic.Authentication
	return c.options.Authentication.ApplyTo(ctx, authentication, c.Generic.SecureServing,
		c.Generic.EgressSelector, c.Generic.OpenAPIConfig, c.Generic.OpenAPIV3Config,
		client, c.Informers, c.Generic.APIServerID)
}

// completeAuthentication adds a cache of verified certificates, the refusal of anonymous
// users that front proxies assert although core admits none, and the authentication of
// tiers.
func (c *Config) completeAuthentication(context.Context) (err error) {
	g := &c.Generic.Authentication
	g.Authenticator = authn.CacheCertificates(g.Authenticator, authn.CertificateConfig{
		Proxies:   g.RequestHeaderConfig,
		Audiences: g.APIAudiences,
		// The provider that ApplyTo makes is not accessible. This one reads the same file;
		// authenticationInfo keeps it up to date.
		Clients: c.controlPlane.ControlPlane.ClusterAuthenticationInfo.ClientCA,
	})
	o := c.options.Authentication
	g.Authenticator, err = authn.RefuseAnonymous(g.Authenticator, o.AuthenticationConfigFile, o.Anonymous != nil && o.Anonymous.Allow)
	g.Authenticator = authn.AuthenticateTiers(g.Authenticator, g.RequestHeaderConfig, "aggregator", "extensions")
	return err
}

func (c *Config) addAuthorization(ctx context.Context) error {
	authorizer, rules, rbac, err := controlplaneapiserver.BuildAuthorizer(ctx, c.options.CompletedOptions.CompletedOptions,
		c.Generic.EgressSelector, c.Generic.APIServerID, c.Informers)
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	var modes []string // unknown with a file, which may change
	if c.options.Authorization.AuthorizationConfigurationFile == "" {
		modes = c.options.Authorization.Modes
	}
	authorizer = authz.CacheRules(authorizer, modes, c.Informers)
	if rbac {
		authorizer = authz.AwaitRules(authorizer, c.Informers)
	} else {
		c.Generic.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName)
	}
	c.Generic.Authorization.Authorizer, c.Generic.RuleResolver = union.New(authz.Tiers(), authorizer), rules
	return nil
}

func (c *Config) addAudit(context.Context) error { return c.options.Audit.ApplyTo(c.Generic) }

func (c *Config) addControlPlane(ctx context.Context) error {
	o := c.options
	transport := controlplaneapiserver.CreateProxyTransport()
	c.controlPlane.ControlPlane.Generic = c.Generic
	extra := &c.controlPlane.ControlPlane.Extra
	extra.APIResourceConfigSource = c.Generic.MergedResourceConfig
	extra.EventTTL = o.EventTTL
	extra.ProxyTransport = transport
	extra.SystemNamespaces = o.SystemNamespaces
	extra.ServiceAccountIssuer = o.ServiceAccountIssuer
	extra.ServiceAccountMaxExpiration = o.ServiceAccountTokenMaxExpiration
	extra.ServiceAccountExtendedMaxExpiration = o.Authentication.ServiceAccounts.MaxExtendedExpiration
	extra.ExtendExpiration = o.Authentication.ServiceAccounts.ExtendExpiration
	extra.VersionedInformers = c.Informers
	if len(o.Authentication.ServiceAccounts.Issuers) > 0 {
		extra.ServiceAccountIssuerURL = o.Authentication.ServiceAccounts.Issuers[0]
	}
	extra.ServiceAccountJWKSURI = o.Authentication.ServiceAccounts.JWKSURI
	if err := c.addServiceAccountKeys(extra); err != nil {
		return err
	}
	if err := c.addClusterAuthenticationInfo(extra); err != nil {
		return err
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.UnknownVersionInteroperabilityProxy) {
		var err error
		extra.PeerAdvertiseAddress = o.PeerAdvertiseAddress
		extra.PeerEndpointLeaseReconciler, err = controlplaneapiserver.CreatePeerEndpointLeaseReconciler(*c.Generic, c.controlPlane.ControlPlane.StorageFactory)
		if err != nil {
			return fmt.Errorf("leases of this server's address: %w", err)
		}
	}
	c.controlPlane.Extra = controlplane.Extra{
		KubeletClientConfig:       o.KubeletConfig,
		ServiceIPRange:            o.PrimaryServiceClusterIPRange,
		APIServerServiceIP:        o.APIServerServiceIP,
		SecondaryServiceIPRange:   o.SecondaryServiceClusterIPRange,
		APIServerServicePort:      443,
		ServiceNodePortRange:      o.ServiceNodePortRange,
		KubernetesServiceNodePort: o.KubernetesServiceNodePort,
		EndpointReconcilerType:    reconcilers.Type(o.EndpointReconcilerType),
		MasterCount:               o.MasterCount,
	}
	if selector := c.Generic.EgressSelector; selector != nil {
		c.controlPlane.Extra.KubeletClientConfig.Lookup = selector.Lookup
		dialer, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
		if err != nil {
			return err
		}
		transport = transport.Clone()
		transport.DialContext = dialer
		extra.ProxyTransport = transport
	}
	return nil
}

func (c *Config) addAdmission(context.Context) error {
	g := c.Generic
	slices, err := proxy.NewEndpointSliceIndexerGetter(c.Informers.Discovery().V1().EndpointSlices())
	if err != nil {
		return err
	}
	services := c.Informers.Core().V1().Services().Lister()
	c.Services = aggregatorapiserver.NewClusterIPServiceResolver(services)
	if c.options.EnableAggregatorRouting {
		c.Services = aggregatorapiserver.NewEndpointServiceResolver(services, slices)
	}
	if local, err := url.Parse("https://" + g.ExternalAddress); err == nil {
		c.Services = aggregatorapiserver.NewLoopbackServiceResolver(c.Services, local)
	}
	shared := controlplaneadmission.Config{
		ExternalInformers:    c.Informers,
		LoopbackClientConfig: g.LoopbackClientConfig,
		APIResourceConfig:    g.MergedResourceConfig,
	}
	initializers, err := shared.New(c.controlPlane.ControlPlane.ProxyTransport, g.EgressSelector, c.Services, g.TracerProvider)
	if err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	more, err := (&kubeadmission.Config{}).New()
	if err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	client, err := kubernetes.NewForConfig(g.LoopbackClientConfig)
	if err != nil {
		return err
	}
	dynamicClient, err := dynamic.NewForConfig(g.LoopbackClientConfig)
	if err != nil {
		return err
	}
	options := c.options.Admission.GenericAdmission
	if named := c.options.Admission.PluginNames; named != nil {
		options.EnablePlugins = named
		options.DisablePlugins = sets.NewString(options.RecommendedPluginOrder...).Difference(sets.NewString(named...)).List()
	}
	c.admission, err = triuneadmission.New(options, triuneadmission.Dependencies{
		Generic: g, Informers: c.Informers, Client: client, Dynamic: dynamicClient,
		Initializers: append(initializers, more...),
	})
	if err != nil {
		return err
	}
	g.AdmissionControl = admission.Interface(c.admission)
	return nil
}

package options

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"
	metricsfeatures "k8s.io/component-base/metrics/features"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/utils/clock"

	triuneadmission "triune.dev/shared/server/admission"
	"triune.dev/shared/server/agreement"
	"triune.dev/shared/server/apiserver"
	"triune.dev/shared/server/authn"
	"triune.dev/shared/server/authz"
	"triune.dev/shared/server/fairness"
	"triune.dev/shared/server/filters"
	"triune.dev/shared/transport/loopback"
	"triune.dev/shared/transport/nexttier"
	"triune.dev/shared/transport/tierclient"
)

// Config is what a tier's server is built of. The embedded Config lacks what
// only the service knows: storage, type converters, further paths.
type Config struct {
	apiserver.Config

	// CoreConfig reaches core in this tier's name; Client and Dynamic are made of
	// it. Informers of the embedded Config use it, too.
	CoreConfig *rest.Config
	Client     kubernetes.Interface
	Dynamic    *dynamic.DynamicClient
	// Services and WebhookAuth reach webhooks: where a Service is, and with what
	// credentials it is called.
	Services    webhook.ServiceResolver
	WebhookAuth webhook.AuthenticationInfoResolverWrapper
	// Rules is how fresh the RBAC rules are; nil if the mode RBAC is off.
	Rules *authz.Freshness

	// core is the way to core, if that is not the next tier's.
	core       *nexttier.Proxy
	authorizer *authz.Authorizer
	agreement  *agreement.Check
	admission  *triuneadmission.Chain
	handler    atomic.Pointer[http.Handler]
	built      chan struct{} // closed when there is a handler
}

// Config builds the parts of the server from valid options. It opens the
// listener; nothing else runs yet.
func (o *Options) Config(ctx context.Context) (*Config, error) {
	g := genericapiserver.NewConfig(o.Tier.Codecs)
	c := &Config{Config: apiserver.Config{Tier: o.Tier.Name, Generic: g, HTTP2Server: apiserver.HTTP2Server(o.HTTP2.Server)}, built: make(chan struct{})}
	if err := o.Server.ApplyTo(g); err != nil {
		return nil, err
	}
	metricsfeatures.ApplyFeatureGates(g.FeatureGate)
	ApplyMetrics(o.Metrics)
	if err := o.listen(g); err != nil {
		return nil, err
	}
	c.loopback()
	if err := o.peers(c); err != nil {
		return nil, err
	}
	if err := fairness.Apply(o.Features, g, c.Client, c.Informers); err != nil {
		return nil, fmt.Errorf("--enable-priority-and-fairness: %w", err)
	}
	if o.Tier.Resources != nil {
		if err := o.APIEnablement.ApplyTo(g, o.Tier.Resources, o.Tier.Scheme); err != nil {
			return nil, fmt.Errorf("--runtime-config=%s: %w", o.APIEnablement.RuntimeConfig.String(), err)
		}
	}
	if err := o.EgressSelector.ApplyTo(g); err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file=%s: %w", o.EgressSelector.ConfigFile, err)
	}
	if g.FeatureGate.Enabled(genericfeatures.APIServerTracing) {
		if err := o.Traces.ApplyTo(g.EgressSelector, g); err != nil {
			return nil, fmt.Errorf("--tracing-config-file=%s: %w", o.Traces.ConfigFile, err)
		}
	}
	g.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	g.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	g.Flagz = o.flags
	g.OpenAPIConfig = &openapicommon.Config{SecurityDefinitions: authn.SecurityDefinitions()}

	if err := o.Authentication.ApplyTo(&g.Authentication, g.SecureServing, c.CoreConfig); err != nil {
		return nil, err
	}
	if err := o.authorization(c); err != nil {
		return nil, err
	}
	if err := o.agree(c); err != nil {
		return nil, err
	}
	genericapiserver.AuthorizeClientBearerToken(g.LoopbackClientConfig, &g.Authentication, &g.Authorization)
	if err := o.Audit.ApplyTo(g); err != nil {
		return nil, fmt.Errorf("audit flags: %w", err)
	}
	c.webhooks()
	if err := o.addAdmission(c); err != nil {
		return nil, err
	}
	return c, nil
}

// ApplyMetrics does what the metrics flags say. It leaves out what none of them
// says: component-base logs an error for a manifest that is not given.
func ApplyMetrics(o *metrics.Options) {
	if len(o.AllowListMapping) > 0 || o.AllowListMappingManifest != "" {
		o.Apply()
		return
	}
	if o.ShowHiddenMetricsForVersion != "" {
		metrics.SetShowHidden()
	}
	metrics.SetDisabledMetrics(o.DisabledMetrics)
}

// listen opens the listener and loads or makes the certificates.
func (o *Options) listen(g *genericapiserver.Config) error {
	if err := SelfSigned(o.SecureServing, o.Server.AdvertiseAddress.String(), dnsNames(o.Tier.Name), nil); err != nil {
		return err
	}
	port := o.SecureServing.BindPort
	if err := o.SecureServing.ApplyTo(&g.SecureServing); err != nil {
		o.SecureServing.BindPort = port // it was set to 0, which would then be told as the flag's value
		return fmt.Errorf("--bind-address=%s --secure-port=%d: %w", o.SecureServing.BindAddress, port, err)
	}
	if g.SecureServing == nil {
		return nil
	}
	// Discovery tells clients where to find this server, with its port.
	if _, _, err := net.SplitHostPort(g.ExternalAddress); err != nil {
		_, port, err := g.SecureServing.HostPort()
		if err != nil {
			return fmt.Errorf("listener address: %w", err)
		}
		g.ExternalAddress = net.JoinHostPort(g.ExternalAddress, strconv.Itoa(port))
	}
	return nil
}

// loopback makes the client with which this tier calls itself. Its token is
// known to this process alone.
func (c *Config) loopback() {
	c.Generic.LoopbackClientConfig = loopback.Config(func() http.Handler {
		if handler := c.handler.Load(); handler != nil {
			return *handler
		}
		return nil
	}, uuid.NewString())
}

// peers makes the ways to the other tiers, and what reads from core.
func (o *Options) peers(c *Config) error {
	limit := max(0, o.Server.MaxRequestsInFlight) + max(0, o.Server.MaxMutatingRequestsInFlight)
	var next *nexttier.Proxy
	if o.Next != nil {
		var err error
		if next, err = o.Next.proxy(o, limit, filters.Refusal(c.Generic)); err != nil {
			return err
		}
		c.Next = &apiserver.Next{Tier: o.Next.tier, Handler: next, Run: next.Run, Check: next.Check, HandOver: next.HandsOver()}
	}
	way := next
	if !o.nextIsCore() || !o.Core.equal(o.Next) {
		var err error
		// Neither bounded nor counted among the requests in flight: these are this
		// tier's own.
		if way, err = o.Core.proxy(o, 0, nil); err != nil {
			return err
		}
		c.core = way
	}
	c.CoreConfig = tierclient.Config(o.Tier.Name, way)
	if slices.Contains(o.Authorization.Modes, authz.RBAC) {
		c.Rules = authz.NewFreshness(clock.RealClock{})
		c.CoreConfig.Wrap(c.Rules.WrapTransport)
	}
	client, err := kubernetes.NewForConfig(c.CoreConfig)
	if err != nil {
		return fmt.Errorf("make a client of core: %w", err)
	}
	c.Client = client
	if c.Dynamic, err = dynamic.NewForConfig(c.CoreConfig); err != nil {
		return fmt.Errorf("make a client of core: %w", err)
	}
	c.Informers = Informers(client)
	return nil
}

// Informers returns a factory whose objects have no managed fields: nobody here
// reads them, and they are half of many objects.
func Informers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(DropManagedFields))
}

// DropManagedFields is the transformation of an informer.
func DropManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

func (o *Options) authorization(c *Config) error {
	reviews, err := kubernetes.NewForConfig(tierclient.WithoutRetries(c.CoreConfig))
	if err != nil {
		return fmt.Errorf("make a client for access reviews: %w", err)
	}
	deps := authz.Dependencies{Informers: c.Informers, Registerer: o.Registerer, Reviews: reviews.AuthorizationV1()}
	if c.Rules != nil {
		deps.Age = c.Rules.Age
	}
	made, err := o.Authorization.New(deps)
	if err != nil {
		return err
	}
	c.authorizer = made
	c.Generic.Authorization.Authorizer = made
	c.Generic.RuleResolver = made
	return nil
}

// Attach ties the parts that need the server to it: call it with the server that
// was made of the embedded Config, before it is prepared.
func (c *Config) Attach(server *apiserver.Server) error {
	handler := server.Handler()
	c.handler.Store(&handler)
	close(c.built)
	server.AddReadyzChecks(c.agreement)
	if err := server.AddPostStartHook("triune-settings", c.compareSettings); err != nil {
		return err
	}
	if c.admission != nil {
		if err := server.AddPostStartHook(c.admission.HookName, c.admission.Hook); err != nil {
			return err
		}
	}
	if c.core == nil {
		return nil
	}
	// Started like the way to the next tier: before anybody waits for what it
	// brings, until after the last request.
	return server.AddPostStartHook("triune-way-to-core", func(ctx genericapiserver.PostStartHookContext) error {
		go func() { _ = c.core.Run(ctx) }()
		return nil
	})
}

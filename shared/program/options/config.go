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

// Config is the configuration of a tier's server. The service adds to the embedded Config
// what only it knows: storage, type converters and additional paths.
type Config struct {
	apiserver.Config

	// CoreConfig configures clients of core with the identity of this tier. Client,
	// Dynamic and the Informers of the embedded Config use it.
	CoreConfig *rest.Config
	Client     kubernetes.Interface
	Dynamic    *dynamic.DynamicClient
	// Services and WebhookAuth find webhooks: the address of a Service, and the
	// credentials to present.
	Services    webhook.ServiceResolver
	WebhookAuth webhook.AuthenticationInfoResolverWrapper
	// Rules measures the age of the RBAC rules; nil without the authorization mode RBAC.
	Rules *authz.Freshness

	// core is the proxy to core; nil if it is the one to the next tier.
	core       *nexttier.Proxy
	authorizer *authz.Authorizer
	agreement  *agreement.Check
	admission  *triuneadmission.Chain
	handler    atomic.Pointer[http.Handler]
	built      chan struct{} // closed when handler is set
}

// Config returns the configuration that the options describe; they must be valid. It opens
// the listener but starts nothing.
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
	c.addLoopback()
	if err := o.addPeers(c); err != nil {
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
	if err := o.addAuthorization(c); err != nil {
		return nil, err
	}
	if err := o.addAgreement(c); err != nil {
		return nil, err
	}
	genericapiserver.AuthorizeClientBearerToken(g.LoopbackClientConfig, &g.Authentication, &g.Authorization)
	if err := o.Audit.ApplyTo(g); err != nil {
		return nil, fmt.Errorf("audit flags: %w", err)
	}
	if err := o.addWebhooks(c); err != nil {
		return nil, err
	}
	if err := o.addAdmission(c); err != nil {
		return nil, err
	}
	return c, nil
}

// ApplyMetrics applies the metrics flags. It calls Apply only if an allow list is given,
// since Apply logs an error without a manifest.
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

// listen opens the listener and loads or makes the serving certificate.
func (o *Options) listen(g *genericapiserver.Config) error {
	if err := ensureServingCert(o.SecureServing, o.Server.AdvertiseAddress.String(), dnsNames(o.Tier.Name)); err != nil {
		return err
	}
	port := o.SecureServing.BindPort
	if err := o.SecureServing.ApplyTo(&g.SecureServing); err != nil {
		o.SecureServing.BindPort = port // ApplyTo has set it to 0
		return fmt.Errorf("--bind-address=%s --secure-port=%d: %w", o.SecureServing.BindAddress, port, err)
	}
	if g.SecureServing == nil {
		return nil
	}
	// Discovery contains the address of this server, which needs the port.
	if _, _, err := net.SplitHostPort(g.ExternalAddress); err != nil {
		_, port, err := g.SecureServing.HostPort()
		if err != nil {
			return fmt.Errorf("listener address: %w", err)
		}
		g.ExternalAddress = net.JoinHostPort(g.ExternalAddress, strconv.Itoa(port))
	}
	return nil
}

// addLoopback makes the configuration of clients that call this tier itself. Only this
// process knows their token.
func (c *Config) addLoopback() {
	c.Generic.LoopbackClientConfig = loopback.Config(func() http.Handler {
		if handler := c.handler.Load(); handler != nil {
			return *handler
		}
		return nil
	}, uuid.NewString())
}

// addPeers makes the proxies to the other tiers, and the clients and informers of core.
func (o *Options) addPeers(c *Config) error {
	limit := max(0, o.Server.MaxRequestsInFlight) + max(0, o.Server.MaxMutatingRequestsInFlight)
	var next *nexttier.Proxy
	if o.Next != nil {
		var err error
		if next, err = o.Next.proxy(o, limit, filters.AnswerNotForwarded(c.Generic)); err != nil {
			return err
		}
		c.Next = &apiserver.Next{Tier: o.Next.tier, Handler: next, Run: next.Run, Replicas: next.Replicas, Check: next.Check, NeedsCredentials: next.ForwardsCredentials()}
	}
	toCore := next
	if !o.nextIsCore() || !o.Core.equal(o.Next) {
		var err error
		// These requests are the tier's own, so their number is not limited.
		if toCore, err = o.Core.proxy(o, 0, nil); err != nil {
			return err
		}
		c.core = toCore
	}
	c.CoreConfig = tierclient.Config(o.Tier.Name, toCore)
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

// Informers returns a factory of informers that drop managed fields: no reader needs them,
// and they are half of many objects.
func Informers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(DropManagedFields))
}

// DropManagedFields removes the managed fields of object. It is a cache.TransformFunc.
func DropManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

func (o *Options) addAuthorization(c *Config) error {
	reviews, err := kubernetes.NewForConfig(tierclient.WithoutRetries(c.CoreConfig))
	if err != nil {
		return fmt.Errorf("make a client for access reviews: %w", err)
	}
	deps := authz.Dependencies{Informers: c.Informers, Registerer: o.Registerer, Reviews: reviews.AuthorizationV1()}
	if c.Rules != nil {
		deps.Age = c.Rules.Age
	}
	if c.authorizer, err = o.Authorization.New(deps); err != nil {
		return err
	}
	c.Generic.Authorization.Authorizer = c.authorizer
	c.Generic.RuleResolver = c.authorizer
	return nil
}

// Attach connects the loopback client to server and adds the hooks and health checks of c.
// Call it once, with the server that was made of the embedded Config, before Prepare.
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
	// Like the proxy to the next tier, it runs from before its first user until after
	// the last request.
	return server.AddPostStartHook("triune-way-to-core", func(ctx genericapiserver.PostStartHookContext) error {
		go func() { _ = c.core.Run(ctx) }()
		return nil
	})
}

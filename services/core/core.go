package core

import (
	"context"
	"fmt"
	_ "time/tzdata" // time zones of CronJobs, for images without them; kube-apiserver embeds them as well

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/kubernetes"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"

	"triune.dev/services/core/internal/bootstrap"
	"triune.dev/shared/server/advertise"
	"triune.dev/shared/server/agreement"
	"triune.dev/shared/server/apiserver"
	triuneopenapi "triune.dev/shared/server/openapi"
	"triune.dev/shared/server/openapi/merged"
	"triune.dev/shared/storage"
)

// Tier is the name of this tier in messages, metrics and logs.
const Tier = "core"

// Server is the core tier.
type Server struct {
	*apiserver.Server

	storage *storage.Storage
	openapi *triuneopenapi.Service
	merged  *merged.Documents // nil without a next tier
	// hasIssuer reports whether the ServiceAccount issuer is published.
	hasIssuer bool
	running   chan struct{} // closed by Run
}

// nextTier returns next with the group-version that is always served there.
func nextTier(next *apiserver.Next) *apiserver.Next {
	if next == nil {
		return nil
	}
	known := *next
	known.AlwaysServes = []schema.GroupVersion{apiextensionsv1.SchemeGroupVersion}
	return &known
}

// New makes the server. It starts nothing.
func New(c *Config) (*Server, error) {
	completed := c.controlPlane.Complete()
	s := &Server{storage: c.storage, running: c.running}
	s.openapi = triuneopenapi.New(triuneopenapi.Config{
		Definitions:         openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions),
		Schemes:             []*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme},
		Title:               "Kubernetes",
		Version:             c.Generic.EffectiveVersion.EmulationVersion().String(),
		SecurityDefinitions: *c.Generic.OpenAPIConfig.SecurityDefinitions,
	})
	generic, unsecured := c.Generic, c.Unsecured
	if c.environment.Head != nil {
		unsecured = nil
		generic = apiserver.DelegateConfig(c.Generic)
		generic.HealthzChecks, generic.LivezChecks, generic.ReadyzChecks = c.Generic.HealthzChecks, c.Generic.LivezChecks, c.Generic.ReadyzChecks
	}
	server, err := build(apiserver.Config{
		Tier:          Tier,
		Generic:       generic,
		Informers:     c.Informers,
		Next:          nextTier(c.environment.Next),
		TypeConverter: s.openapi.TypeConverter,
		Unsecured:     unsecured,
		HTTP2Server:   c.options.HTTP2Server(),
	})
	if err != nil {
		return nil, err
	}
	s.Server = server
	c.server.Store(server)
	client, err := kubernetes.NewForConfig(c.Generic.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	if err := s.installAPIs(c, completed, client); err != nil {
		return nil, err
	}
	if err := s.installIssuer(completed); err != nil {
		return nil, err
	}
	if c.options.EnableLogsHandler {
		s.installLogs()
	}
	s.installOpenAPI(c)
	server.UnlistedHandle(agreement.Path, agreement.Handler(c.settings))
	if c.environment.Head == nil {
		server.UnlistedHandle(advertise.Path, advertise.Handler(completed.Extra.EndpointReconcilerConfig.Reconciler))
	}
	return s, s.addHooks(c, completed, client)
}

func build(config apiserver.Config) (*apiserver.Server, error) {
	completed, err := config.Complete()
	if err != nil {
		return nil, err
	}
	return completed.New()
}

// Run serves until ctx ends and all requests in flight have been answered; then it closes
// the storage. Call it once.
func (s *Server) Run(ctx context.Context) error {
	return s.storage.Around(ctx, func(ctx context.Context) error {
		prepared := s.Prepare()
		close(s.running)
		err := prepared.Run(ctx)
		if s.merged != nil {
			s.merged.Close()
		}
		return err
	})
}

// installAPIs installs the enabled resources of every group of Kubernetes.
func (s *Server) installAPIs(c *Config, completed controlplane.CompletedConfig, client *kubernetes.Clientset) error {
	providers, err := completed.StorageProviders(client)
	if err != nil {
		return err
	}
	version := c.Generic.EffectiveVersion
	lifecycle, err := genericapiserver.NewResourceExpirationEvaluatorFromOptions(genericapiserver.ResourceExpirationEvaluatorOptions{
		CurrentVersion:                          version.EmulationVersion(),
		Prerelease:                              version.BinaryVersion().PreRelease(),
		EmulationForwardCompatible:              c.Generic.EmulationForwardCompatible,
		RuntimeConfigEmulationForwardCompatible: c.Generic.RuntimeConfigEmulationForwardCompatible,
	})
	if err != nil {
		return err
	}
	for _, provider := range providers {
		group := provider.GroupName()
		info, err := provider.NewRESTStorage(c.Generic.MergedResourceConfig, c.Generic.RESTOptionsGetter)
		if err != nil {
			return fmt.Errorf("storage of API group %q: %w", group, err)
		}
		err = lifecycle.RemoveUnavailableKinds(group, info.Scheme, info.VersionedResourcesStorageMap, c.Generic.MergedResourceConfig)
		if err != nil {
			return fmt.Errorf("lifecycle of API group %q: %w", group, err)
		}
		if len(info.VersionedResourcesStorageMap) == 0 {
			continue // disabled by --runtime-config or by age
		}
		if hooked, ok := provider.(genericapiserver.PostStartHookProvider); ok {
			name, hook, err := hooked.PostStartHook()
			if err != nil {
				return fmt.Errorf("post-start hook of API group %q: %w", group, err)
			}
			switch name {
			case rbacrest.PostStartHookName:
				hook = func(ctx genericapiserver.PostStartHookContext) error { return bootstrap.RBAC(ctx, client) }
			case schedulingrest.PostStartHookName:
				hook = func(ctx genericapiserver.PostStartHookContext) error { return bootstrap.PriorityClasses(ctx, client) }
			}
			if err := s.AddPostStartHook(name, hook); err != nil {
				return err
			}
		}
		if err := s.Install(&info); err != nil {
			return err
		}
	}
	return nil
}

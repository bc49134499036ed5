// Package admission builds a tier's admission chain from the options of k8s.io/apiserver.
//
// Those options can build the chain themselves, but they register a post-start hook that only
// k8s.io/apiserver's own server can run. Here, [New] returns a [Chain] that contains the hook.
// A Chain is safe for concurrent use.
package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
)

// mapperReset is how often the REST mapper is reset, so that policies find the kinds of new
// custom resources.
const mapperReset = 30 * time.Second

// Dependencies are passed to the plugins.
type Dependencies struct {
	Generic   *genericapiserver.Config
	Informers informers.SharedInformerFactory
	Client    kubernetes.Interface
	Dynamic   dynamic.Interface
	// Initializers are additional initializers for the plugins.
	Initializers []admission.PluginInitializer
	// Only restricts the plugins of the options to those named in it; nil means no restriction.
	Only []string
}

// Chain is an admission chain, and the hook that keeps it up to date.
type Chain struct {
	admission.Interface
	// HookName and Hook are a post-start hook to run once with the server. The background work
	// of plugins ends with the context of the hook.
	HookName string
	Hook     genericapiserver.PostStartHookFunc
}

// Admit implements admission.MutationInterface. Handlers check for this interface by type, so
// embedding admission.Interface alone would disable all plugins.
func (c *Chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if mutating, ok := c.Interface.(admission.MutationInterface); ok {
		return mutating.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (c *Chain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if validating, ok := c.Interface.(admission.ValidationInterface); ok {
		return validating.Validate(ctx, a, o)
	}
	return nil
}

var (
	_ admission.MutationInterface   = (*Chain)(nil)
	_ admission.ValidationInterface = (*Chain)(nil)
)

// New builds the chain. It consists of the plugins that are enabled by default, adjusted by
// --enable-admission-plugins and --disable-admission-plugins, and configured by
// --admission-control-config-file.
func New(options *genericoptions.AdmissionOptions, deps Dependencies) (*Chain, error) {
	if deps.Informers == nil || deps.Client == nil || deps.Dynamic == nil {
		return nil, errors.New("admission: needs informers and clients of the API")
	}
	names := Enabled(options)
	if deps.Only != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(deps.Only, name) })
	}
	config, err := admission.ReadAdmissionConfiguration(names, options.ConfigFile, configScheme())
	if err != nil {
		return nil, fmt.Errorf("admission: read --admission-control-config-file: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(deps.Client.Discovery()))
	g := deps.Generic
	drained := make(chan struct{}) // stops the background work of plugins
	initializers := admission.PluginInitializers{
		initializer.NewAPIServerIDInitializer(g.APIServerID),
		initializer.New(deps.Client, deps.Dynamic, deps.Informers, g.Authorization.Authorizer,
			g.FeatureGate, g.EffectiveVersion, drained, mapper),
	}
	initializers = append(initializers, deps.Initializers...)
	chain, err := options.Plugins.NewFromPlugins(names, config, initializers, options.Decorators)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return &Chain{
		Interface: admissionmetrics.WithStepMetrics(chain),
		HookName:  "start-apiserver-admission-initializer",
		Hook: func(ctx genericapiserver.PostStartHookContext) error {
			mapper.Reset()
			go wait.Until(mapper.Reset, mapperReset, ctx.Done())
			context.AfterFunc(ctx, func() { close(drained) })
			return nil
		},
	}, nil
}

// Enabled returns the names of the plugins that the options enable, in the order in which they
// run. A plugin that is both enabled and disabled is enabled.
func Enabled(options *genericoptions.AdmissionOptions) []string {
	var names []string
	for _, name := range options.RecommendedPluginOrder {
		off := options.DefaultOffPlugins.Has(name) || slices.Contains(options.DisablePlugins, name)
		if !off || slices.Contains(options.EnablePlugins, name) {
			names = append(names, name)
		}
	}
	return names
}

// configScheme returns a scheme with the kinds of the admission configuration file.
func configScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(apiserverapi.AddToScheme(scheme))
	utilruntime.Must(apiserverv1alpha1.AddToScheme(scheme))
	utilruntime.Must(apiserverv1.AddToScheme(scheme))
	return scheme
}

// Package controllers runs some of kube-controller-manager's controllers in the process of
// the API server: those that an API needs even without nodes. They remove deleted namespaces
// and the dependents of deleted owners, give new namespaces their ServiceAccount and the root
// CA, aggregate cluster roles, count what quotas limit, remove finished Jobs, approve and sign
// certificates, and serve bootstrap tokens.
//
// The controllers are those of k8s.io/kubernetes, with the names and aliases of
// kube-controller-manager's --controllers. [Resolve] checks such names, and [Run] runs the
// controllers. Of several processes with the same etcd, one runs them at a time
// ([Config.Elect]). The election is not kube-controller-manager's, so they must not run beside
// a kube-controller-manager with the same controllers.
package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

const (
	// allGeneric stands for all controllers of this package.
	allGeneric = "all-generic"

	workers = 5
	// discoveryPeriod is how often the garbage collector looks for new kinds.
	discoveryPeriod = 5 * time.Second
	// firstSync bounds the time that the garbage collector waits for the lists of all
	// kinds before it starts.
	firstSync = 30 * time.Second
	// namespaceResync and quotaResync are how often all namespaces and quotas are checked
	// again.
	namespaceResync = 5 * time.Minute
	quotaResync     = 5 * time.Minute
)

// constructors make the controllers. The returned function runs one until ctx ends; it is nil
// if the configuration lacks what the controller needs.
var constructors = map[string]func(context.Context, *dependencies) (func(context.Context), error){
	names.NamespaceController:                          newNamespace,
	names.GarbageCollectorController:                   newGarbageCollector,
	names.ServiceAccountController:                     newServiceAccount,
	names.ServiceAccountTokenController:                newServiceAccountToken,
	names.RootCACertificatePublisherController:         newRootCA,
	names.ClusterRoleAggregationController:             newClusterRoleAggregation,
	names.ResourceQuotaController:                      newResourceQuota,
	names.TTLAfterFinishedController:                   newTTLAfterFinished,
	names.CertificateSigningRequestApprovingController: newApproving,
	names.CertificateSigningRequestSigningController:   newSigning,
	names.CertificateSigningRequestCleanerController:   newRequestCleaner,
	names.BootstrapSignerController:                    newBootstrapSigner,
	names.TokenCleanerController:                       newTokenCleaner,
}

// aliases are the short names of kube-controller-manager.
var aliases = map[string]string{
	"namespace":               names.NamespaceController,
	"garbagecollector":        names.GarbageCollectorController,
	"serviceaccount":          names.ServiceAccountController,
	"root-ca-cert-publisher":  names.RootCACertificatePublisherController,
	"root-ca":                 names.RootCACertificatePublisherController,
	"clusterrole-aggregation": names.ClusterRoleAggregationController,
	"serviceaccount-token":    names.ServiceAccountTokenController,
	"resourcequota":           names.ResourceQuotaController,
	"ttl-after-finished":      names.TTLAfterFinishedController,
	"csrapproving":            names.CertificateSigningRequestApprovingController,
	"csrsigning":              names.CertificateSigningRequestSigningController,
	"csrcleaner":              names.CertificateSigningRequestCleanerController,
	"bootstrapsigner":         names.BootstrapSignerController,
	"tokencleaner":            names.TokenCleanerController,
}

// Known returns every name and alias, sorted.
func Known() []string {
	known := append(slices.Collect(maps.Keys(constructors)), slices.Collect(maps.Keys(aliases))...)
	known = append(known, allGeneric)
	slices.Sort(known)
	return known
}

// Resolve returns the controller names of the values of --controllers, sorted and without
// duplicates. The error names the first unknown value.
func Resolve(values []string) ([]string, error) {
	chosen := map[string]bool{}
	for _, value := range values {
		if value == allGeneric {
			for name := range constructors {
				chosen[name] = true
			}
			continue
		}
		if name, ok := aliases[value]; ok {
			value = name
		}
		if constructors[value] == nil {
			return nil, fmt.Errorf("--controllers: unknown controller %q, known are %v", value, Known())
		}
		chosen[value] = true
	}
	return slices.Sorted(maps.Keys(chosen)), nil
}

// Config is the configuration of the controllers.
type Config struct {
	// Client configures clients with all rights.
	Client *rest.Config
	// RootCA is the bundle published into every namespace, in PEM.
	RootCA []byte
	// SigningCertFile and SigningKeyFile are the CA that signs the certificates of nodes and
	// users. Without them nothing is signed.
	SigningCertFile, SigningKeyFile string
	// TokenKeyFile is the private key that signs the tokens in Secrets of ServiceAccounts.
	// Without it there are none.
	TokenKeyFile string
	// Elect runs the controllers only while this process holds a Lease.
	Elect bool
}

// dependencies are shared by the controllers.
type dependencies struct {
	Config
	client    *kubernetes.Clientset
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	objects   informerfactory.InformerFactory // of every kind
	started   chan struct{}                   // closed when the informers have been started
}

// Run runs the chosen controllers, which are results of Resolve, until ctx ends. It returns
// when all have stopped.
func Run(ctx context.Context, config Config, chosen []string) error {
	client, err := kubernetes.NewForConfig(config.Client)
	if err != nil {
		return err
	}
	metadataClient, err := metadata.NewForConfig(config.Client)
	if err != nil {
		return err
	}
	run := func(ctx context.Context) error {
		d := &dependencies{
			Config: config, client: client, metadata: metadataClient,
			informers: informers.NewSharedInformerFactory(client, 0),
			started:   make(chan struct{}),
		}
		d.objects = informerfactory.NewInformerFactory(d.informers, metadatainformer.NewSharedInformerFactory(metadataClient, 0))
		return d.run(ctx, chosen)
	}
	if config.Elect {
		return elect(ctx, client, run)
	}
	return run(ctx)
}

func (d *dependencies) run(ctx context.Context, chosen []string) error {
	runs := make([]func(context.Context), 0, len(chosen))
	for _, name := range chosen {
		run, err := constructors[name](ctx, d)
		switch {
		case err != nil:
			return fmt.Errorf("controller %s: %w", name, err)
		case run == nil:
			klog.FromContext(ctx).Info("controller not started, it lacks a key", "controller", name)
		default:
			runs = append(runs, run)
		}
	}
	d.objects.Start(ctx.Done()) // and d.informers
	close(d.started)
	klog.FromContext(ctx).Info("controllers started", "controllers", chosen)
	runAll(ctx, runs...)
	d.informers.Shutdown()
	return nil
}

// runAll calls the functions at the same time and waits for them.
func runAll(ctx context.Context, runs ...func(context.Context)) {
	var group sync.WaitGroup
	for _, run := range runs {
		group.Go(func() { run(ctx) })
	}
	group.Wait()
}

func newNamespace(ctx context.Context, d *dependencies) (func(context.Context), error) {
	controller := namespace.NewNamespaceController(ctx, d.client, d.metadata,
		d.client.Discovery().ServerPreferredNamespacedResources,
		d.informers.Core().V1().Namespaces(), namespaceResync, corev1.FinalizerKubernetes)
	return func(ctx context.Context) { controller.Run(ctx, workers) }, nil
}

func newGarbageCollector(ctx context.Context, d *dependencies) (func(context.Context), error) {
	cached := memory.NewMemCacheClient(d.client.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	collector, err := garbagecollector.NewGarbageCollector(ctx, d.client, d.metadata, mapper,
		garbagecollector.DefaultIgnoredResources(), d.objects, d.started)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		runAll(ctx,
			func(ctx context.Context) { collector.Run(ctx, workers, firstSync) },
			func(ctx context.Context) { collector.Sync(ctx, d.client.Discovery(), discoveryPeriod) })
	}, nil
}

func newServiceAccount(ctx context.Context, d *dependencies) (func(context.Context), error) {
	controller, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx),
		d.informers.Core().V1().ServiceAccounts(), d.informers.Core().V1().Namespaces(), d.client,
		serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { controller.Run(ctx, 1) }, nil
}

func newRootCA(_ context.Context, d *dependencies) (func(context.Context), error) {
	publisher, err := rootcacertpublisher.NewPublisher(d.informers.Core().V1().ConfigMaps(),
		d.informers.Core().V1().Namespaces(), d.client, d.RootCA)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { publisher.Run(ctx, 1) }, nil
}

func newClusterRoleAggregation(_ context.Context, d *dependencies) (func(context.Context), error) {
	controller := clusterroleaggregation.NewClusterRoleAggregation(d.informers.Rbac().V1().ClusterRoles(), d.client.RbacV1())
	return func(ctx context.Context) { controller.Run(ctx, workers) }, nil
}

func newResourceQuota(ctx context.Context, d *dependencies) (func(context.Context), error) {
	configuration, err := quotainstall.NewQuotaConfigurationForControllers(generic.ListerFuncForResourceFunc(d.informers.ForResource), d.informers)
	if err != nil {
		return nil, err
	}
	discover := d.client.Discovery().ServerPreferredNamespacedResources
	quotas, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient:               d.client.CoreV1(),
		ResourceQuotaInformer:     d.informers.Core().V1().ResourceQuotas(),
		ResyncPeriod:              controller.StaticResyncPeriodFunc(quotaResync),
		InformerFactory:           d.objects,
		ReplenishmentResyncPeriod: controller.StaticResyncPeriodFunc(0),
		DiscoveryFunc:             discover,
		IgnoredResourcesFunc:      configuration.IgnoredResources,
		InformersStarted:          d.started,
		Registry:                  generic.NewRegistry(configuration.Evaluators()),
		UpdateFilter:              quotainstall.DefaultUpdateFilter(),
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		runAll(ctx,
			func(ctx context.Context) { quotas.Run(ctx, workers) },
			func(ctx context.Context) { quotas.Sync(ctx, discover, discoveryPeriod) })
	}, nil
}

func newTTLAfterFinished(ctx context.Context, d *dependencies) (func(context.Context), error) {
	jobs := ttlafterfinished.New(ctx, d.informers.Batch().V1().Jobs(), d.client)
	return func(ctx context.Context) { jobs.Run(ctx, workers) }, nil
}

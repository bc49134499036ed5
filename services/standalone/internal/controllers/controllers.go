// Package controllers runs some of kube-controller-manager's controllers inside
// the process, so that an API server alone can finish what it starts: a deleted
// namespace goes away, dependents follow their owners, new namespaces get their
// ServiceAccount and the root CA.
//
// The controllers are those of k8s.io/kubernetes, under the names and aliases
// that kube-controller-manager's --controllers knows. They do not elect a leader:
// an installation that runs kube-controller-manager leaves them off.
package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
)

const (
	// allGeneric stands for every controller that does not need nodes.
	allGeneric = "all-generic"

	workers = 5
	// discoveryPeriod is how often the garbage collector looks for new kinds.
	discoveryPeriod = 5 * time.Second
	// firstSync bounds how long the garbage collector waits for all kinds to be
	// listed before it starts with those that are.
	firstSync = 30 * time.Second
	// namespaceResync finds namespaces whose last event was lost.
	namespaceResync = 5 * time.Minute
)

// constructors make a controller; the function returned runs it until ctx ends.
var constructors = map[string]func(context.Context, *dependencies) (func(context.Context), error){
	names.NamespaceController:                  newNamespace,
	names.GarbageCollectorController:           newGarbageCollector,
	names.ServiceAccountController:             newServiceAccount,
	names.RootCACertificatePublisherController: newRootCA,
	names.ClusterRoleAggregationController:     newClusterRoleAggregation,
}

// aliases are the short names of kube-controller-manager.
var aliases = map[string]string{
	"namespace":               names.NamespaceController,
	"garbagecollector":        names.GarbageCollectorController,
	"serviceaccount":          names.ServiceAccountController,
	"root-ca-cert-publisher":  names.RootCACertificatePublisherController,
	"root-ca":                 names.RootCACertificatePublisherController,
	"clusterrole-aggregation": names.ClusterRoleAggregationController,
}

// Known returns every name and alias, sorted.
func Known() []string {
	known := append(slices.Collect(maps.Keys(constructors)), slices.Collect(maps.Keys(aliases))...)
	known = append(known, allGeneric)
	slices.Sort(known)
	return known
}

// Resolve turns the values of --controllers into controller names, sorted and
// without repetition. The error names the first value that is not known.
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

// Config is what the controllers work with.
type Config struct {
	// Client reaches the API with all privileges.
	Client *rest.Config
	// RootCA is the bundle published into every namespace, in PEM.
	RootCA []byte
}

// dependencies are shared by the controllers.
type dependencies struct {
	Config
	client    *kubernetes.Clientset
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	started   chan struct{} // closed when the informers have been started
}

// Run runs the named controllers, as Resolve returns them, until ctx ends and all
// have stopped.
func Run(ctx context.Context, config Config, chosen []string) error {
	client, err := kubernetes.NewForConfig(config.Client)
	if err != nil {
		return err
	}
	metadataClient, err := metadata.NewForConfig(config.Client)
	if err != nil {
		return err
	}
	d := &dependencies{
		Config: config, client: client, metadata: metadataClient,
		informers: informers.NewSharedInformerFactory(client, 0),
		started:   make(chan struct{}),
	}
	runs := make([]func(context.Context), 0, len(chosen))
	for _, name := range chosen {
		run, err := constructors[name](ctx, d)
		if err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
		runs = append(runs, run)
	}
	d.informers.Start(ctx.Done())
	close(d.started)
	klog.FromContext(ctx).Info("controllers started", "controllers", chosen)
	var group sync.WaitGroup
	for _, run := range runs {
		group.Go(func() { run(ctx) })
	}
	group.Wait()
	d.informers.Shutdown()
	return nil
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
	factory := informerfactory.NewInformerFactory(d.informers, metadatainformer.NewSharedInformerFactory(d.metadata, 0))
	collector, err := garbagecollector.NewGarbageCollector(ctx, d.client, d.metadata, mapper,
		garbagecollector.DefaultIgnoredResources(), factory, d.started)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		var group sync.WaitGroup
		group.Go(func() { collector.Run(ctx, workers, firstSync) })
		group.Go(func() { collector.Sync(ctx, d.client.Discovery(), discoveryPeriod) })
		group.Wait()
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

// Package controllers runs some of kube-controller-manager's controllers in the process of
// the API server: they remove deleted namespaces and the dependents of deleted owners, give
// new namespaces their ServiceAccount and the root CA, and aggregate cluster roles.
//
// The controllers are those of k8s.io/kubernetes, with the names and aliases of
// kube-controller-manager's --controllers. [Resolve] checks such names, and [Run] runs the
// controllers. They do not elect a leader, so they must not run beside a
// kube-controller-manager.
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
	// allGeneric stands for all controllers of this package.
	allGeneric = "all-generic"

	workers = 5
	// discoveryPeriod is how often the garbage collector looks for new kinds.
	discoveryPeriod = 5 * time.Second
	// firstSync bounds the time that the garbage collector waits for the lists of all
	// kinds before it starts.
	firstSync = 30 * time.Second
	// namespaceResync is how often all namespaces are checked again.
	namespaceResync = 5 * time.Minute
)

// constructors make the controllers. The returned function runs one until ctx ends.
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
}

// dependencies are shared by the controllers.
type dependencies struct {
	Config
	client    *kubernetes.Clientset
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	started   chan struct{} // closed when the informers have been started
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

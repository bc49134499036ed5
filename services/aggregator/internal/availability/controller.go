package availability

import (
	"context"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	serviceproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	apiregistrationlisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/status/metrics"
)

const (
	// workers is the number of concurrent checks, which may take seconds each.
	workers = 5
	// whileAvailable is the interval between two checks of an available server.
	whileAvailable = 30 * time.Second
	// firstRetry is the pause after a failed check. It doubles up to lastRetry.
	firstRetry, lastRetry = 500 * time.Millisecond, 10 * time.Second
	// recheckAfter is the delay of Recheck, to combine the calls of concurrent requests.
	recheckAfter = 100 * time.Millisecond
	// untilSynced is the pause while the informers have not synced.
	untilSynced = 500 * time.Millisecond
)

// Config configures a [Controller]. All fields are required.
type Config struct {
	APIServices apiregistrationinformers.APIServiceInformer
	Client      apiregistrationclient.APIServicesGetter
	// Informers provide Services and EndpointSlices.
	Informers informers.SharedInformerFactory
	// Prober returns the prober of a remote APIService.
	Prober  func(*apiregistrationv1.APIService) Prober
	Metrics *metrics.Metrics
}

// Controller updates the conditions of APIServices. Recheck is safe for concurrent use.
type Controller struct {
	checker checker
	client  apiregistrationclient.APIServicesGetter
	lister  apiregistrationlisters.APIServiceLister
	metrics *metrics.Metrics
	// local and remote have the names of APIServices without and with a Service. A name may
	// be in the other queue, too, after a change; only the right one checks it.
	local, remote workqueue.TypedRateLimitingInterface[string]

	listed cache.InformerSynced   // APIServices
	synced []cache.InformerSynced // Services and EndpointSlices
}

// New returns a controller; RunLocal and RunRemote start it.
func New(config Config) (*Controller, error) {
	services := config.Informers.Core().V1().Services()
	slices := config.Informers.Discovery().V1().EndpointSlices()
	getter, err := serviceproxy.NewEndpointSliceIndexerGetter(slices)
	if err != nil {
		return nil, fmt.Errorf("watch endpointslices: %w", err)
	}
	c := &Controller{
		checker: checker{services: services.Lister(), slices: getter, prober: config.Prober},
		client:  config.Client,
		lister:  config.APIServices.Lister(),
		metrics: config.Metrics,
		local:   newQueue("LocalAvailabilityController"),
		remote:  newQueue("RemoteAvailabilityController"),
	}
	watch := func(informer cache.SharedIndexInformer, changed func(obj any)) (cache.InformerSynced, error) {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: changed,
			UpdateFunc: func(before, after any) {
				if before != after {
					changed(after)
				}
			},
			DeleteFunc: changed,
		})
		if err != nil {
			return nil, fmt.Errorf("watch for the availability of apiservices: %w", err)
		}
		return registration.HasSynced, nil
	}
	if c.listed, err = watch(config.APIServices.Informer(), c.apiServiceChanged); err != nil {
		return nil, err
	}
	for _, dependency := range []struct {
		informer cache.SharedIndexInformer
		changed  func(any)
	}{{services.Informer(), c.serviceChanged}, {slices.Informer(), c.sliceChanged}} {
		synced, err := watch(dependency.informer, dependency.changed)
		if err != nil {
			return nil, err
		}
		c.synced = append(c.synced, synced)
	}
	return c, nil
}

// newQueue returns a queue with the name that it has in kube-apiserver's metrics.
func newQueue(name string) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: name},
	)
}

func (c *Controller) apiServiceChanged(obj any) {
	if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		c.local.Add(name)
		c.remote.Add(name)
	}
}

func (c *Controller) serviceChanged(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		c.dependents(key)
	}
}

func (c *Controller) sliceChanged(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
		c.dependents(slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName])
	}
}

// dependents enqueues the APIServices of a Service ("namespace/name").
func (c *Controller) dependents(service string) {
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		return // a lister reads memory and does not fail
	}
	for _, apiService := range all {
		if reference := apiService.Spec.Service; reference != nil && reference.Namespace+"/"+reference.Name == service {
			c.remote.Add(apiService.Name)
		}
	}
}

// Recheck checks an APIService soon; calls before that check are combined. It does not block.
func (c *Controller) Recheck(apiService string) { c.remote.AddAfter(apiService, recheckAfter) }

// RunLocal updates APIServices without a Service until the context ends.
func (c *Controller) RunLocal(ctx context.Context) { c.run(ctx, c.local, c.syncLocal) }

// RunRemote checks APIServices with a Service until the context ends, and waits for the current
// checks.
func (c *Controller) RunRemote(ctx context.Context) { c.run(ctx, c.remote, c.syncRemote) }

// syncFunc updates an APIService by name, and returns when to do so again.
type syncFunc func(ctx context.Context, name string) (delay, error)

func (c *Controller) run(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], check syncFunc) {
	defer queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.listed) {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for range workers {
		running.Go(func() {
			for processNext(ctx, queue, check) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
}

func processNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], check syncFunc) bool {
	name, quit := queue.Get()
	if quit {
		return false
	}
	defer queue.Done(name)
	again, err := check(ctx, name)
	switch {
	case err != nil:
		if ctx.Err() == nil && !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Error(err, "availability of an apiservice is not written", "name", name)
		}
		queue.AddRateLimited(name)
	case again == withBackoff:
		queue.AddRateLimited(name)
	default:
		queue.Forget(name)
		if again > 0 {
			queue.AddAfter(name, time.Duration(again))
		}
	}
	return true
}

// delay is the time until the next check; 0 waits for a change.
type delay time.Duration

// withBackoff delays the next check exponentially.
const withBackoff delay = -1

// syncLocal updates the status of an APIService without a Service.
func (c *Controller) syncLocal(ctx context.Context, name string) (delay, error) {
	current, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || current.Spec.Service != nil {
		return 0, err
	}
	return 0, c.updateStatus(ctx, current, localCondition())
}

// syncRemote checks an APIService with a Service and updates its status.
func (c *Controller) syncRemote(ctx context.Context, name string) (delay, error) {
	current, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) {
		c.metrics.ForgetAPIService(name)
		return 0, nil
	}
	if err != nil || current.Spec.Service == nil {
		return 0, err
	}
	for _, synced := range c.synced {
		if !synced() {
			// Services are not known yet: keep the last condition.
			return delay(untilSynced), nil
		}
	}
	found := c.checker.condition(ctx, current)
	if ctx.Err() != nil {
		// The check was canceled and says nothing about the server.
		return 0, nil
	}
	if err := c.updateStatus(ctx, current, found); err != nil {
		return 0, err
	}
	if found.Status != apiregistrationv1.ConditionTrue {
		return withBackoff, nil
	}
	return delay(whileAvailable), nil
}

// updateStatus updates the status if the condition has changed.
func (c *Controller) updateStatus(ctx context.Context, current *apiregistrationv1.APIService, found apiregistrationv1.APIServiceCondition) error {
	updated := current.DeepCopy()
	apiregistrationhelper.SetAPIServiceCondition(updated, found)
	c.metrics.SetUnavailableGauge(updated)
	if equality.Semantic.DeepEqual(current.Status, updated.Status) {
		return nil
	}
	klog.FromContext(ctx).V(2).Info("availability of an apiservice has changed", "name", current.Name, "available", found.Status, "reason", found.Reason, "message", found.Message)
	_, err := c.client.APIServices().UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update the status of an apiservice: %w", err)
	}
	c.metrics.SetUnavailableCounter(current, updated)
	return nil
}

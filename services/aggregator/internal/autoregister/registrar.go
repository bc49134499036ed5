package autoregister

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	apiregistrationlisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
)

// Values of the label that marks an APIService as registered by itself.
const (
	onStart = "onstart"
	always  = "true"
)

// workers write APIServices at the same time: 300 CRDs should not stand in line.
const workers = 5

// Registrar creates, corrects and removes APIServices. Its methods are safe for
// concurrent use and do not block, except Run.
type Registrar struct {
	client apiregistrationclient.APIServicesGetter
	lister apiregistrationlisters.APIServiceLister
	synced cache.InformerSynced
	queue  workqueue.TypedRateLimitingInterface[string]

	mu sync.Mutex
	// builtIn are the built-in group-versions that the next tier has ever served.
	builtIn map[string]Priority
	// whole is set once the next tier has told all it serves; until then a
	// missing group-version means nothing.
	chainComplete bool
	// custom counts the CRDs that serve a group-version.
	crdCounts map[string]int
	// served are the group-versions of each CRD, by its name.
	crdVersions map[string][]schema.GroupVersion
	// crds is set once every CRD has been counted.
	crdsSynced bool
	// settled are the onstart APIServices that have had their one write.
	written map[string]bool
	// ready is what Ready has found once.
	ready bool
}

// New returns a registrar that wants nothing yet.
func New(informer apiregistrationinformers.APIServiceInformer, client apiregistrationclient.APIServicesGetter) (*Registrar, error) {
	r := &Registrar{
		client: client,
		lister: informer.Lister(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.DefaultTypedControllerRateLimiter[string](),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "autoregister"},
		),
		builtIn:     map[string]Priority{},
		crdCounts:   map[string]int{},
		crdVersions: map[string][]schema.GroupVersion{},
		written:     map[string]bool{},
	}
	enqueue := func(obj any) {
		if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			r.queue.Add(name)
		}
	}
	registration, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: enqueue,
	})
	if err != nil {
		return nil, fmt.Errorf("watch apiservices: %w", err)
	}
	r.synced = registration.HasSynced
	return r, nil
}

// nameOf is the name of a group-version's APIService.
func apiServiceName(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

// Serves tells which group-versions the next tier serves now. Custom ones among
// them are passed over.
func (r *Registrar) SetServed(gvs []schema.GroupVersion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[string]Priority, len(gvs))
	for _, gv := range gvs {
		if priority, ok := BuiltIn(gv); ok {
			seen[apiServiceName(gv)] = priority
		}
	}
	// The head and the tail of what is behind us; whoever has both is not missing
	// a tier in between.
	_, core := seen["v1."]
	_, extensions := seen["v1.apiextensions.k8s.io"]
	// What was seen once is not removed for having gone: replicas of the next tier
	// may differ while it is being upgraded.
	for name, priority := range seen {
		r.builtIn[name] = priority
	}
	first := core && extensions && !r.chainComplete
	r.chainComplete = r.chainComplete || first
	for name := range seen {
		if !r.written[name] {
			r.queue.Add(name)
		}
	}
	if first {
		r.enqueueAll()
	}
}

// enqueueAll looks at every APIService again: some may be there without a cause.
func (r *Registrar) enqueueAll() {
	all, err := r.lister.List(labels.Everything())
	if err != nil {
		return // a lister reads memory; it has no error to give
	}
	for _, apiService := range all {
		r.queue.Add(apiService.Name)
	}
}

// Run writes until the context ends, and returns when no write is under way.
func (r *Registrar) Run(ctx context.Context) {
	defer r.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), r.synced) {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for range workers {
		running.Go(func() {
			for r.processNext(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.queue.ShutDown()
}

func (r *Registrar) processNext(ctx context.Context) bool {
	name, quit := r.queue.Get()
	if quit {
		return false
	}
	defer r.queue.Done(name)
	if err := r.sync(ctx, name); err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "apiservice is not registered yet", "name", name)
		}
		r.queue.AddRateLimited(name)
		return true
	}
	r.queue.Forget(name)
	return true
}

// wish is what should be with an APIService.
type desired struct {
	object  *apiregistrationv1.APIService // nil: it should not exist
	certain bool                          // a nil object is not for lack of knowledge
}

func (r *Registrar) desiredLocked(name, label string) desired {
	gv := apiregistrationhelper.APIServiceNameToGroupVersion(name)
	if priority, ok := r.builtIn[name]; ok {
		return desired{object: newAPIService(gv, priority, onStart), certain: true}
	}
	if r.crdCounts[name] > 0 {
		return desired{object: newAPIService(gv, customPriority, always), certain: true}
	}
	if label == onStart {
		return desired{certain: r.chainComplete}
	}
	return desired{certain: r.crdsSynced}
}

func newAPIService(gv schema.GroupVersion, priority Priority, label string) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{
			Name:   apiServiceName(gv),
			Labels: map[string]string{autoregister.AutoRegisterManagedLabel: label},
		},
		Spec: apiregistrationv1.APIServiceSpec{
			Group:                gv.Group,
			Version:              gv.Version,
			GroupPriorityMinimum: priority.Group,
			VersionPriority:      priority.Version,
		},
	}
}

// sync makes one APIService what it should be.
func (r *Registrar) sync(ctx context.Context, name string) error {
	current, err := r.lister.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	label := ""
	if current != nil {
		label = current.Labels[autoregister.AutoRegisterManagedLabel]
	}
	r.mu.Lock()
	wanted := r.desiredLocked(name, label)
	settled := r.written[name]
	r.mu.Unlock()

	once := wanted.object != nil && wanted.object.Labels[autoregister.AutoRegisterManagedLabel] == onStart
	switch {
	case once && settled:
		return nil
	case current == nil && wanted.object == nil:
		return nil
	case current == nil:
		err = r.create(ctx, wanted.object)
	case label != onStart && label != always:
		// Not registered by itself: what it says is somebody's decision.
	case wanted.object == nil && !wanted.certain:
		return nil
	case wanted.object == nil:
		return r.remove(ctx, current)
	case !equality.Semantic.DeepEqual(current.Spec, wanted.object.Spec):
		err = r.correct(ctx, current, wanted.object)
	}
	if err == nil && once {
		r.mu.Lock()
		r.written[name] = true
		r.mu.Unlock()
	}
	return err
}

func (r *Registrar) create(ctx context.Context, wanted *apiregistrationv1.APIService) error {
	_, err := r.client.APIServices().Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // another replica was faster; its event brings us here again
	}
	if err != nil {
		return fmt.Errorf("create apiservice: %w", err)
	}
	return nil
}

func (r *Registrar) correct(ctx context.Context, current, wanted *apiregistrationv1.APIService) error {
	corrected := current.DeepCopy()
	corrected.Spec = wanted.Spec
	_, err := r.client.APIServices().Update(ctx, corrected, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update apiservice: %w", err)
	}
	return nil
}

func (r *Registrar) remove(ctx context.Context, current *apiregistrationv1.APIService) error {
	err := r.client.APIServices().Delete(ctx, current.Name, metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(string(current.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete apiservice: %w", err)
	}
	r.mu.Lock()
	delete(r.written, current.Name)
	r.mu.Unlock()
	return nil
}

// Ready returns an error until every built-in group-version that is served behind
// us has been seen with an APIService that is available; what comes later does not
// count.
func (r *Registrar) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready {
		return nil
	}
	if len(r.builtIn) == 0 {
		return errors.New("the next tier has not told what it serves")
	}
	var missing []string
	for name := range r.builtIn {
		apiService, err := r.lister.Get(name)
		if err != nil || !apiregistrationhelper.IsAPIServiceConditionTrue(apiService, apiregistrationv1.Available) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("missing APIService: [%s]", strings.Join(missing, " "))
	}
	r.ready = true
	return nil
}

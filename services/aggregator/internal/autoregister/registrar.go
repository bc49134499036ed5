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

// Values of the label of automatically registered APIServices.
const (
	onStart = "onstart"
	always  = "true"
)

// workers is the number of concurrent writes, for clusters with hundreds of CRDs.
const workers = 5

// Registrar creates, updates and deletes APIServices. Its methods are safe for concurrent use, and
// do not block except for Run.
type Registrar struct {
	client apiregistrationclient.APIServicesGetter
	lister apiregistrationlisters.APIServiceLister
	synced cache.InformerSynced
	queue  workqueue.TypedRateLimitingInterface[string]

	mu sync.Mutex
	// builtIn are the built-in group-versions that the next tier has served at any time.
	builtIn map[string]Priority
	// chainComplete is set once all tiers were seen at the same time. Before that, a missing
	// group-version means nothing.
	chainComplete bool
	// crdCounts counts the CRDs that serve a group-version, by the name of its APIService.
	crdCounts map[string]int
	// crdVersions are the served group-versions by the name of the CRD.
	crdVersions map[string][]schema.GroupVersion
	// crdsSynced is set once all existing CRDs are counted.
	crdsSynced bool
	// written are the onstart APIServices that this process has written or found correct.
	written map[string]bool
	// ready is set once Ready has returned nil.
	ready bool
}

// New returns a registrar without group-versions.
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

// apiServiceName returns the name of the APIService of a group-version.
func apiServiceName(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

// SetServed sets the group-versions that the next tier serves. It ignores those that are not built
// in.
func (r *Registrar) SetServed(gvs []schema.GroupVersion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[string]Priority, len(gvs))
	for _, gv := range gvs {
		if priority, ok := BuiltIn(gv); ok {
			seen[apiServiceName(gv)] = priority
		}
	}
	// These belong to the first and the last tier behind this one: with both, the chain is
	// complete.
	_, core := seen["v1."]
	_, extensions := seen["v1.apiextensions.k8s.io"]
	// Do not remove those that are missing now: during an upgrade, replicas of the next tier
	// may differ.
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

// enqueueAll enqueues all APIServices, to find those that are no longer wanted.
func (r *Registrar) enqueueAll() {
	all, err := r.lister.List(labels.Everything())
	if err != nil {
		return // a lister reads memory and does not fail
	}
	for _, apiService := range all {
		r.queue.Add(apiService.Name)
	}
}

// Run writes APIServices until the context ends, and waits for the current writes.
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

// desired is the desired state of an APIService.
type desired struct {
	object  *apiregistrationv1.APIService // nil if it should not exist
	certain bool                          // false if object may be nil only for lack of knowledge
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

// sync reconciles an APIService.
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
		// Not managed: an administrator has decided what it says.
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
		return nil // by another replica; its event enqueues the name again
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

// Ready returns an error until every built-in group-version of the next tier has an available
// APIService. Afterwards it always returns nil.
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

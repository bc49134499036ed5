package apiservices

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	apiregistrationlisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"triune.dev/services/aggregator/internal/remote"
)

// rebuildDelay combines changes: registering 300 CRDs must not rebuild the table 300 times.
const rebuildDelay = 25 * time.Millisecond

// Table maintains the current Snapshot with an informer.
type Table struct {
	lister  apiregistrationlisters.APIServiceLister
	synced  cache.InformerSynced
	backend func(*apiregistrationv1.APIService) *remote.Backend
	changed chan struct{}

	current atomic.Pointer[Snapshot]
	onSwap  []func(*Snapshot) // set before Run and read only by Run
}

// NewTable returns the table of an informer's APIServices, which is empty until Run. backend creates
// the Backend of a remote APIService.
func NewTable(informer apiregistrationinformers.APIServiceInformer, backend func(*apiregistrationv1.APIService) *remote.Backend) (*Table, error) {
	t := &Table{
		lister:  informer.Lister(),
		backend: backend,
		changed: make(chan struct{}, 1),
	}
	registration, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { t.markChanged() },
		UpdateFunc: func(before, after any) {
			// A resync delivers the same object.
			if before != after {
				t.markChanged()
			}
		},
		DeleteFunc: func(any) { t.markChanged() },
	})
	if err != nil {
		return nil, fmt.Errorf("watch apiservices: %w", err)
	}
	t.synced = registration.HasSynced
	return t, nil
}

func (t *Table) markChanged() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// OnSwap registers f, which is called with each new snapshot, in order, after it has become the
// current one. OnSwap must be called before Run; f must not block.
func (t *Table) OnSwap(f func(*Snapshot)) { t.onSwap = append(t.onSwap, f) }

// Current returns the current snapshot, or nil before the first one.
func (t *Table) Current() *Snapshot { return t.current.Load() }

// Ready returns an error until there is a snapshot.
func (t *Table) Ready() error {
	if t.Current() == nil {
		return fmt.Errorf("apiservices have not been listed")
	}
	return nil
}

// Run updates the table until the context ends.
func (t *Table) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), t.synced) {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		// Clear it before listing: later changes cause another round.
		select {
		case <-t.changed:
		default:
		}
		t.rebuild(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.changed:
			t.markChanged()
			timer.Reset(rebuildDelay)
		}
	}
}

func (t *Table) rebuild(ctx context.Context) {
	all, err := t.lister.List(labels.Everything())
	if err != nil {
		// A lister reads memory and does not fail.
		klog.FromContext(ctx).Error(err, "apiservices could not be read from the informer")
		return
	}
	next := Build(all, t.current.Load(), t.backend)
	t.current.Store(next)
	for _, f := range t.onSwap {
		f(next)
	}
}

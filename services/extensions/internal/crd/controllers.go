package crd

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	"k8s.io/klog/v2"

	"triune.dev/services/extensions/internal/compactcrd"
)

// workers is how many CRDs each of the controllers that allow it works on at once.
const workers = 5

// Controllers keeps the conditions of CRDs and finalizes them. Make it with
// NewControllers before the informer starts.
type Controllers struct {
	establishing *establish.EstablishingController
	checked      *checked
	// settle is how long a CRD whose names are accepted waits to be established.
	settle time.Duration
	run    []func(context.Context)
}

// NewControllers makes the controllers over an informer of all CRDs, which must
// resync: the finalizing controller takes a resync for its time to look again.
// settle delays the establishment of a CRD so that every replica knows its names
// before one says that it is served; 0 when there is one replica.
//
// The informer's definitions are outlines; see that package.
func NewControllers(crds informers.CustomResourceDefinitionInformer, getter client.CustomResourceDefinitionsGetter, objects finalizer.CRClientGetter, settle time.Duration) *Controllers {
	writer := compactcrd.Client{Getter: getter}
	var names client.CustomResourceDefinitionsGetter = writer
	if settle == 0 {
		names = establishedAtOnce{writer}
	}
	naming := status.NewNamingConditionController(klog.Background(), crds, names)
	checked := newChecked(crds, writer)
	schemas := nonstructuralschema.NewConditionController(checked, checked)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(crds, writer)
	finalizing := finalizer.NewCRDFinalizer(crds, writer, objects)
	establishing := establish.NewEstablishingController(crds, writer)
	return &Controllers{
		establishing: establishing,
		checked:      checked,
		settle:       settle,
		run: []func(context.Context){
			naming.RunWithContext,
			establishing.RunWithContext,
			func(ctx context.Context) { schemas.RunWithContext(workers, ctx) },
			func(ctx context.Context) { approval.RunWithContext(workers, ctx) },
			func(ctx context.Context) { finalizing.RunWithContext(workers, ctx) },
		},
	}
}

// Run works until ctx ends.
func (c *Controllers) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, run := range c.run {
		all.Go(func() { run(ctx) })
	}
	all.Wait()
}

// Put queues crd for establishment when it is ready for it. It implements
// Observer.
func (c *Controllers) Put(crd *apiextensionsv1.CustomResourceDefinition) {
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) &&
		!apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		c.establishing.QueueCRD(crd.Name, c.settle)
	}
}

// Remove implements Observer.
func (c *Controllers) Remove(crd *apiextensionsv1.CustomResourceDefinition) {
	c.checked.forget(crd.Name)
}

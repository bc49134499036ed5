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

// workers is the number of workers of each controller that can have several.
const workers = 5

// Controllers runs the controllers that set the conditions of CRDs and finalize them. Make
// it with NewControllers before the informer starts.
type Controllers struct {
	establishing *establish.EstablishingController
	schemaOnce   *schemaOnce
	// establishDelay is the time between the acceptance of a CRD's names and its
	// establishment.
	establishDelay time.Duration
	run            []func(context.Context)
}

// ControllersConfig configures [Controllers]. All fields but EstablishDelay are required.
type ControllersConfig struct {
	// CRDs is the informer of all CRDs, which are compact (package compactcrd). It must
	// resync, because the finalizing controller retries on resyncs.
	CRDs informers.CustomResourceDefinitionInformer
	// Client writes CRDs.
	Client client.CustomResourceDefinitionsGetter
	// Objects deletes the custom resources of a CRD that is deleted.
	Objects finalizer.CRClientGetter
	// EstablishDelay is the time in which all replicas learn the names of a CRD before it is
	// established; 0 if there is one replica.
	EstablishDelay time.Duration
}

// NewControllers returns the controllers, which do nothing before Run.
func NewControllers(c ControllersConfig) *Controllers {
	crds := c.CRDs
	writer := compactcrd.Client{Getter: c.Client}
	var namingWriter client.CustomResourceDefinitionsGetter = writer
	if c.EstablishDelay == 0 {
		namingWriter = establishingGetter{writer}
	}
	naming := status.NewNamingConditionController(klog.Background(), crds, namingWriter)
	schemaOnce := newSchemaOnce(crds, writer)
	schemas := nonstructuralschema.NewConditionController(schemaOnce, schemaOnce)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(crds, writer)
	finalizing := finalizer.NewCRDFinalizer(crds, writer, c.Objects)
	establishing := establish.NewEstablishingController(crds, writer)
	return &Controllers{
		establishing:   establishing,
		schemaOnce:     schemaOnce,
		establishDelay: c.EstablishDelay,
		run: []func(context.Context){
			naming.RunWithContext,
			establishing.RunWithContext,
			func(ctx context.Context) { schemas.RunWithContext(workers, ctx) },
			func(ctx context.Context) { approval.RunWithContext(workers, ctx) },
			func(ctx context.Context) { finalizing.RunWithContext(workers, ctx) },
		},
	}
}

// Run runs the controllers until ctx ends. Call it once.
func (c *Controllers) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, run := range c.run {
		all.Go(func() { run(ctx) })
	}
	all.Wait()
}

// Put queues crd for establishment once its names are accepted. It implements Observer.
func (c *Controllers) Put(crd *apiextensionsv1.CustomResourceDefinition) {
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) &&
		!apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		c.establishing.QueueCRD(crd.Name, c.establishDelay)
	}
}

// Remove implements Observer.
func (c *Controllers) Remove(crd *apiextensionsv1.CustomResourceDefinition) {
	c.schemaOnce.forget(crd.Name)
}

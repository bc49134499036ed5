package extensions

import (
	"errors"
	"fmt"
	"slices"
	"time"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"

	"triune.dev/services/extensions/internal/compactcrd"
	"triune.dev/services/extensions/internal/crd"
)

// resync is how often the controllers check every CRD again.
const resync = 5 * time.Minute

// addHooks adds the post-start hooks, under kube-apiserver's names. The server is ready
// when it serves every CRD that exists.
func (s *Server) addHooks(config Config) error {
	d := &s.crds
	errs := []error{
		s.server.AddPostStartHook("start-apiextensions-informers", d.start),
		s.server.AddPostStartHook("start-apiextensions-controllers", d.awaitStart),
		s.server.AddPostStartHook("crd-informer-synced", d.awaitSync),
	}
	for name, hook := range config.Hooks {
		errs = append(errs, s.server.AddPostStartHook(name, hook))
	}
	return errors.Join(errs...)
}

// crdHooks runs the informer of CRDs, its observers and the controllers.
type crdHooks struct {
	server         *Server
	observers      []crd.Observer
	establishDelay time.Duration

	// started is closed by start, after it has set synced.
	started chan struct{}
	// synced reports whether the observers have handled the CRDs that existed at the
	// start.
	synced cache.InformerSynced
}

// start starts the informer and everything that depends on it.
func (d *crdHooks) start(ctx genericapiserver.PostStartHookContext) error {
	client, err := apiextensionsclient.NewForConfig(d.server.server.LoopbackClientConfig())
	if err != nil {
		return fmt.Errorf("make the client of custom resource definitions: %w", err)
	}
	informers := apiextensionsinformers.NewSharedInformerFactory(client, resync)
	crds := informers.Apiextensions().V1().CustomResourceDefinitions()
	if err := crds.Informer().SetTransform(compactcrd.Compact); err != nil {
		return fmt.Errorf("compact custom resource definitions: %w", err)
	}
	// NewControllers starts goroutines for the queues, which only Run ends.
	controllers := crd.NewControllers(crd.ControllersConfig{
		CRDs: crds, Client: client.ApiextensionsV1(), Objects: d.server.objects, EstablishDelay: d.establishDelay,
	})
	d.server.background.Go(func() { controllers.Run(ctx) })
	registration, err := crd.Observe(crds.Informer(), slices.Insert(slices.Clone(d.observers), 1, crd.Observer(controllers))...)
	if err != nil {
		return err
	}
	d.synced = registration.HasSynced
	informers.StartWithContext(ctx)
	d.server.background.Go(func() {
		<-ctx.Done()
		informers.Shutdown()
	})
	close(d.started)
	return nil
}

// awaitStart returns when the controllers have been started.
func (d *crdHooks) awaitStart(ctx genericapiserver.PostStartHookContext) error {
	select {
	case <-d.started:
	case <-ctx.Done():
	}
	return nil
}

// awaitSync returns when all CRDs that existed at the start are served.
func (d *crdHooks) awaitSync(ctx genericapiserver.PostStartHookContext) error {
	select {
	case <-d.started:
	case <-ctx.Done():
		return nil
	}
	if cache.WaitForCacheSync(ctx.Done(), d.synced) {
		close(d.server.tail.known)
	}
	return nil
}

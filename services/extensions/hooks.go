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

// resync is how often the controllers look at every CRD again.
const resync = 5 * time.Minute

// addHooks adds what runs with the server, under kube-apiserver's names. The
// server is ready when it can answer for every CRD that exists.
func (s *Server) addHooks(config Config) error {
	d := &s.definitions
	errs := []error{
		s.server.AddPostStartHook("start-apiextensions-informers", d.observe),
		s.server.AddPostStartHook("start-apiextensions-controllers", d.control),
		s.server.AddPostStartHook("crd-informer-synced", d.await),
	}
	for name, hook := range config.Hooks {
		errs = append(errs, s.server.AddPostStartHook(name, hook))
	}
	return errors.Join(errs...)
}

// definitions follows the CRDs while the server runs.
type definitions struct {
	server    *Server
	observers []crd.Observer
	settle    time.Duration

	// observing is closed by observe, which sets the field below before.
	observing chan struct{}
	// synced tells that the observers know the CRDs that existed at the start.
	synced cache.InformerSynced
}

// observe connects the CRDs to everything that depends on them, the controllers
// among that.
func (d *definitions) observe(ctx genericapiserver.PostStartHookContext) error {
	client, err := apiextensionsclient.NewForConfig(d.server.server.LoopbackClientConfig())
	if err != nil {
		return fmt.Errorf("make the client of custom resource definitions: %w", err)
	}
	informers := apiextensionsinformers.NewSharedInformerFactory(client, resync)
	crds := informers.Apiextensions().V1().CustomResourceDefinitions()
	if err := crds.Informer().SetTransform(compactcrd.Pack); err != nil {
		return fmt.Errorf("keep outlines of custom resource definitions: %w", err)
	}
	// The queues of the controllers work as soon as they are made, and end with
	// Run alone.
	controllers := crd.NewControllers(crds, client.ApiextensionsV1(), d.server.objects, d.settle)
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
	close(d.observing)
	return nil
}

// control returns when the controllers run.
func (d *definitions) control(ctx genericapiserver.PostStartHookContext) error {
	select {
	case <-d.observing:
	case <-ctx.Done():
	}
	return nil
}

// await returns when every CRD of the start is served.
func (d *definitions) await(ctx genericapiserver.PostStartHookContext) error {
	select {
	case <-d.observing:
	case <-ctx.Done():
		return nil
	}
	if cache.WaitForCacheSync(ctx.Done(), d.synced) {
		close(d.server.tail.known)
	}
	return nil
}

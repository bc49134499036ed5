package extensions

import (
	"errors"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
)

// addHooks adds what runs with the server, under kube-apiserver's names. The
// server is ready when it can answer for every CRD that exists.
func (s *Server) addHooks(config Config) error {
	errs := []error{
		s.server.AddPostStartHook("start-apiextensions-informers", s.startInformers),
		s.server.AddPostStartHook("start-apiextensions-controllers", s.startControllers),
		s.server.AddPostStartHook("crd-informer-synced", s.awaitDefinitions),
	}
	for name, hook := range config.Hooks {
		errs = append(errs, s.server.AddPostStartHook(name, hook))
	}
	return errors.Join(errs...)
}

func (s *Server) startInformers(ctx genericapiserver.PostStartHookContext) error {
	s.informers.StartWithContext(ctx)
	s.background.Go(func() {
		<-ctx.Done()
		s.informers.Shutdown()
	})
	return nil
}

func (s *Server) startControllers(ctx genericapiserver.PostStartHookContext) error {
	s.background.Go(func() { s.controllers.Run(ctx) })
	return nil
}

// awaitDefinitions returns when every CRD of the start is served.
func (s *Server) awaitDefinitions(ctx genericapiserver.PostStartHookContext) error {
	if cache.WaitForCacheSync(ctx.Done(), s.synced) {
		close(s.tail.known)
	}
	return nil
}

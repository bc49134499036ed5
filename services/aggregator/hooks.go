package aggregator

import (
	"context"
	"errors"
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"

	"triune.dev/shared/server/apiserver"
)

// addHooks adds the post-start hooks, under kube-apiserver's names, and the health checks. No
// hook waits for another tier: an unfinished hook fails the liveness check, and restarting this
// process does not bring back another one.
func (s *Server) addHooks(config Config) error {
	in := func(name string, runs ...func(context.Context)) error {
		return s.server.AddPostStartHook(name, func(ctx genericapiserver.PostStartHookContext) error {
			for _, run := range runs {
				s.background.Go(func() { run(ctx) })
			}
			return nil
		})
	}
	errs := []error{
		in("aggregator-reload-proxy-client-cert", s.network.runCertificates),
		in("start-kube-aggregator-informers", s.runInformers),
		in("apiservice-registration-controller", s.table.Run),
		in("apiservice-discovery-controller", s.discovery.Run),
		in("apiservice-status-local-available-controller", s.availability.RunLocal),
		in("apiservice-status-remote-available-controller", s.availability.RunRemote),
		in("kube-apiserver-autoregistration", s.registrar.Run, s.crds.RunWithContext, s.markCRDsSynced),
	}
	for _, name := range []string{"apiservice-openapi-controller", "apiservice-openapiv3-controller"} {
		errs = append(errs, s.server.AddPostStartHook(name, s.awaitOpenAPISources))
	}
	for name, hook := range config.Hooks {
		errs = append(errs, s.server.AddPostStartHook(name, hook))
	}
	ready := func(name string, check func() error) healthz.HealthChecker {
		return healthz.NamedCheck(name, func(*http.Request) error { return check() })
	}
	s.server.AddReadyzChecks(
		ready("apiservice-registration", s.table.Ready),
		ready("apiservice-discovery", s.discovery.Ready),
	)
	const registered = "autoregister-completion"
	s.server.AddStartChecks(
		healthz.NamedCheck(registered, func(req *http.Request) error { return s.autoRegisters(req, config.Next) }),
		ready(registered, s.registrar.Ready))
	return errors.Join(errs...)
}

// awaitOpenAPISources returns when the OpenAPI documents contain those of the extension servers
// that existed at the start. The documents themselves are built on demand.
func (s *Server) awaitOpenAPISources(ctx genericapiserver.PostStartHookContext) error {
	select {
	case <-s.tableReady:
	case <-ctx.Done():
	}
	return nil
}

// autoRegisters returns an error while the APIServices of the next tier are not all available,
// although the tier can be reached: otherwise nothing that this process does would help.
func (s *Server) autoRegisters(req *http.Request, next *apiserver.Next) error {
	err := s.registrar.Ready()
	if err != nil && next.Check != nil && next.Check(req) != nil {
		return nil
	}
	return err
}

func (s *Server) runInformers(ctx context.Context) {
	s.apiServices.StartWithContext(ctx)
	<-ctx.Done()
	s.apiServices.Shutdown()
}

package aggregator

import (
	"context"
	"errors"
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

// addHooks adds the post-start hooks, under kube-apiserver's names, and the readiness checks. No
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
		in("apiservice-status-available-controller", s.availability.Run),
		in("kube-apiserver-autoregistration", s.registrar.Run, s.crds.RunWithContext, s.markCRDsSynced),
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
		ready("autoregister-completion", s.registrar.Ready),
	)
	return errors.Join(errs...)
}

func (s *Server) runInformers(ctx context.Context) {
	s.apiServices.StartWithContext(ctx)
	<-ctx.Done()
	s.apiServices.Shutdown()
}

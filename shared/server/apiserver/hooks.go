package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
)

// hooks run once, after the server listens and before it shuts down.
type hooks struct {
	loopback *rest.Config
	disabled sets.String
	post     []postStartHook
	pre      []preShutdownHook
}

type postStartHook struct {
	name string
	run  genericapiserver.PostStartHookFunc
	done chan struct{} // closed when run has returned nil
}

type preShutdownHook struct {
	name string
	run  func() error
}

// AddPostStartHook adds a hook that runs after the server listens. The server is not ready
// before the hook has returned, and an error shuts the server down. The context of the hook
// is cancelled when the server has drained.
func (s *Server) AddPostStartHook(name string, hook genericapiserver.PostStartHookFunc) error {
	if s.hooks.disabled.Has(name) {
		return nil
	}
	if s.hasPostStartHook(name) {
		return fmt.Errorf("post-start hook %q is registered twice", name)
	}
	done := make(chan struct{})
	s.hooks.post = append(s.hooks.post, postStartHook{name: name, run: hook, done: done})
	check := hookCheck(name, done)
	s.AddStartChecks(check, check)
	return nil
}

// AddStartChecks adds two checks of one name that fail until a step of the start is done: alive
// to healthz and, after --livez-grace-period, to livez, and ready to readyz.
func (s *Server) AddStartChecks(alive, ready healthz.HealthChecker) {
	s.health.add([]healthz.HealthChecker{alive}, []healthz.HealthChecker{s.graceful(alive)}, []healthz.HealthChecker{ready})
}

func (s *Server) hasPostStartHook(name string) bool {
	return slices.ContainsFunc(s.hooks.post, func(h postStartHook) bool { return h.name == name })
}

// AddPreShutdownHook adds a hook that runs when the shutdown begins, while the server still
// serves.
func (s *Server) AddPreShutdownHook(name string, hook func() error) {
	s.hooks.pre = append(s.hooks.pre, preShutdownHook{name: name, run: hook})
}

// graceful returns a check that succeeds until --livez-grace-period is over, so that a slow
// start is not interrupted and repeated.
func (s *Server) graceful(check healthz.HealthChecker) healthz.HealthChecker {
	grace := s.config.Generic.LivezGracePeriod
	if grace <= 0 {
		return check
	}
	until := time.Now().Add(grace)
	return healthz.NamedCheck(check.Name(), func(req *http.Request) error {
		if time.Now().Before(until) {
			return nil
		}
		return check.Check(req)
	})
}

// hookCheck returns a check that fails until the hook has returned.
func hookCheck(name string, done <-chan struct{}) healthz.HealthChecker {
	return healthz.NamedCheck("poststarthook/"+name, func(*http.Request) error {
		select {
		case <-done:
			return nil
		default:
			return errors.New("not finished")
		}
	})
}

// start runs every hook in a goroutine of group.
func (h *hooks) start(ctx context.Context, group *errgroup.Group) {
	for _, hook := range h.post {
		group.Go(func() error {
			err := hook.run(genericapiserver.PostStartHookContext{LoopbackClientConfig: h.loopback, Context: ctx})
			if err != nil {
				return fmt.Errorf("post-start hook %q: %w", hook.name, err)
			}
			close(hook.done)
			return nil
		})
	}
}

// stop runs all pre-shutdown hooks, even if some fail, and waits for them at most for limit:
// a hook may depend on a server that has already shut down.
func (h *hooks) stop(limit time.Duration) error {
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, hook := range h.pre {
			if err := hook.run(); err != nil {
				errs = append(errs, fmt.Errorf("pre-shutdown hook %q: %w", hook.name, err))
			}
		}
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("pre-shutdown hooks: not done after %v", limit)
	}
}

// The hooks that maintain the limits of requests in flight, with kube-apiserver's names.
const (
	fairnessConfigHook = "priority-and-fairness-config-consumer"
	fairnessFilterHook = "priority-and-fairness-filter"
	maxInFlightHook    = "max-in-flight-filter"
	objectCountHook    = "storage-object-count-tracker-hook"
)

var limitHooks = []string{fairnessConfigHook, fairnessFilterHook, maxInFlightHook, objectCountHook}

// addGenericHooks adds the hooks that every tier runs, with kube-apiserver's names.
func (s *Server) addGenericHooks() error {
	g := s.config.Generic
	add := func(name string, run func(ctx context.Context)) error {
		return s.AddPostStartHook(name, func(ctx genericapiserver.PostStartHookContext) error {
			run(ctx)
			return nil
		})
	}
	var errs []error
	if informers := s.config.Informers; informers != nil {
		errs = append(errs, add("generic-apiserver-start-informers", func(ctx context.Context) { informers.Start(ctx.Done()) }))
		s.AddReadyzChecks(healthz.NewInformerSyncHealthz(informers))
	}
	if flow := g.FlowControl; flow != nil {
		errs = append(errs,
			add(fairnessConfigHook, func(ctx context.Context) { go func() { _ = flow.Run(ctx.Done()) }() }),
			add(fairnessFilterHook, func(ctx context.Context) {
				genericfilters.StartPriorityAndFairnessWatermarkMaintenance(ctx.Done())
			}))
	} else {
		errs = append(errs, add(maxInFlightHook, func(ctx context.Context) {
			genericfilters.StartMaxInFlightWatermarkMaintenance(ctx.Done())
		}))
	}
	if tracker := g.StorageObjectCountTracker; tracker != nil {
		errs = append(errs, add(objectCountHook, func(ctx context.Context) { go tracker.RunUntil(ctx.Done()) }))
	}
	return errors.Join(errs...)
}

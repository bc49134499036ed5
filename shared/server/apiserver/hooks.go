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

// hooks are run once, after the server listens and before it ends.
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

// AddPostStartHook runs hook after the server listens. The server is not ready
// before it has returned; an error ends the server. The context it gets ends when
// the server has drained.
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
	s.health.add([]healthz.HealthChecker{check}, []healthz.HealthChecker{s.graceful(check)}, []healthz.HealthChecker{check})
	return nil
}

func (s *Server) hasPostStartHook(name string) bool {
	return slices.ContainsFunc(s.hooks.post, func(h postStartHook) bool { return h.name == name })
}

// AddPreShutdownHook runs hook when the server begins to shut down, while it
// still serves.
func (s *Server) AddPreShutdownHook(name string, hook func() error) {
	s.hooks.pre = append(s.hooks.pre, preShutdownHook{name: name, run: hook})
}

// graceful is check, but green until --livez-grace-period is over: a start that takes
// long must not be ended for it, and begun again.
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

// hookCheck is red until the hook has returned.
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

// stop runs the pre-shutdown hooks, all of them whatever they return, and waits
// for them until limit is over: the end of a server must not depend on another
// one that has ended before.
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

// The hooks that keep the limits of requests in flight, under kube-apiserver's
// names.
const (
	fairnessConfigHook = "priority-and-fairness-config-consumer"
	fairnessFilterHook = "priority-and-fairness-filter"
	maxInFlightHook    = "max-in-flight-filter"
	objectCountHook    = "storage-object-count-tracker-hook"
)

var limitHooks = []string{fairnessConfigHook, fairnessFilterHook, maxInFlightHook, objectCountHook}

// addGenericHooks adds what every tier runs, under kube-apiserver's names.
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

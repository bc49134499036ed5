package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/server/healthz"
)

// A DetailedChecker is a check that has more to say than that all is well. What it
// says is on the path of the check ("/readyz/event-log"), after the first line, which
// is "ok" as of any other check; the list of all checks stays as it is, one line for
// each. Detail is called by several goroutines at once, after Check has found nothing.
type DetailedChecker interface {
	healthz.HealthChecker
	// Detail returns lines that end with a newline.
	Detail() string
}

// health collects the checks of the three health endpoints until Prepare
// installs them. A check's name appears once in each.
type health struct {
	healthz, livez, readyz []healthz.HealthChecker
}

func (h *health) add(healthy, live, ready []healthz.HealthChecker) {
	h.healthz = appendNew(h.healthz, healthy)
	h.livez = appendNew(h.livez, live)
	h.readyz = appendNew(h.readyz, ready)
}

func appendNew(checks, more []healthz.HealthChecker) []healthz.HealthChecker {
	for _, check := range more {
		if !slices.ContainsFunc(checks, func(c healthz.HealthChecker) bool { return c.Name() == check.Name() }) {
			checks = append(checks, check)
		}
	}
	return checks
}

// Adopt takes over the health checks and the pre-shutdown hooks of a tier in the
// same process, which this one stands in front of: only the head of the chain is
// probed, and what a tier does before it ends needs the head to serve still.
func (s *Server) Adopt(delegate *Server) {
	s.hooks.pre = append(s.hooks.pre, delegate.hooks.pre...)
	delegate.hooks.pre = nil
	s.health.add(delegate.health.healthz, delegate.health.livez, delegate.health.readyz)
}

// installHealth routes the health endpoints. Checks added later are not seen.
func (s *Server) installHealth() {
	if next := s.config.Next; next != nil && next.Check != nil {
		s.addNextCheck(next)
	}
	shutdown := healthz.NewShutdownHealthz(s.lifecycle.shuttingDown)
	s.health.add(nil, nil, []healthz.HealthChecker{shutdown})
	healthz.InstallHandler(detailing{s, s.health.healthz}, s.health.healthz...)
	healthz.InstallLivezHandler(detailing{s, s.health.livez}, s.health.livez...)
	healthz.InstallReadyzHandler(detailing{s, s.health.readyz}, s.health.readyz...)
}

// detailing gives the paths of detailed checks handlers that tell the detail.
type detailing struct {
	*Server
	checks []healthz.HealthChecker
}

// Handle routes a path to the handler that package healthz has made for it.
func (d detailing) Handle(path string, handler http.Handler) {
	for _, check := range d.checks {
		if detailed, ok := check.(DetailedChecker); ok && strings.HasSuffix(path, "/"+check.Name()) {
			handler = withDetail(detailed, handler)
		}
	}
	d.Server.Handle(path, handler)
}

// withDetail leaves what is not well to the handler.
func withDetail(check DetailedChecker, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if check.Check(req) != nil {
			handler.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, "ok\n", check.Detail()) // whoever has gone does not read it
	})
}

// addNextCheck routes /healthz/next-<tier>: whether the next tier can be reached.
// It is not part of readyz, because what this tier owns works without the next
// one, and taking it out of rotation would make that unreachable too.
func (s *Server) addNextCheck(next *Next) {
	s.UnlistedHandle("/healthz/next-"+next.Tier, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := next.Check(req); err != nil {
			http.Error(w, fmt.Sprintf("next tier %s: %v", next.Tier, err), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "ok")
	}))
}

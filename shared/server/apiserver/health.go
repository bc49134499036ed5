package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/server/healthz"
)

// DetailedChecker is a health check that reports details while it succeeds. They follow the
// "ok" at the path of the check ("/readyz/event-log"). The list of all checks still has one
// line for each. Detail is called after Check has succeeded, and must be safe for concurrent
// use.
type DetailedChecker interface {
	healthz.HealthChecker
	// Detail returns lines that end with a newline.
	Detail() string
}

// loopbackCertificate never fails: kube-apiserver's check of this name fails when the certificate
// has expired with which it calls itself, and a server that calls itself without a socket needs
// none.
var loopbackCertificate = healthz.NamedCheck("loopback-serving-certificate", func(*http.Request) error { return nil })

// health holds the checks of the three health endpoints, for Prepare to install. Names are
// unique in each.
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

// Adopt takes over the health checks and the pre-shutdown hooks of a tier behind this one in
// the same process: only the head of the chain is probed, and the pre-shutdown hooks of a
// tier need a head that still serves.
func (s *Server) Adopt(delegate *Server) {
	s.hooks.pre = append(s.hooks.pre, delegate.hooks.pre...)
	delegate.hooks.pre = nil
	s.health.add(delegate.health.healthz, delegate.health.livez, delegate.health.readyz)
}

// installHealth routes the health endpoints. Later checks have no effect.
func (s *Server) installHealth() {
	if next := s.config.Next; next != nil && next.Check != nil {
		s.addNextCheck(next)
	}
	shutdown := healthz.NewShutdownHealthz(s.lifecycle.shuttingDown)
	s.health.add(nil, nil, []healthz.HealthChecker{shutdown})
	for endpoint, checks := range map[string][]healthz.HealthChecker{
		"/healthz": s.health.healthz, "/livez": s.health.livez, "/readyz": s.health.readyz,
	} {
		healthz.InstallPathHandler(healthMux{s, endpoint, checks}, endpoint, checks...)
	}
}

// healthMux routes the handlers of package healthz for an endpoint: it adds details to those
// of detailed checks, and the checks of other tiers to that of all checks.
type healthMux struct {
	*Server
	endpoint string
	checks   []healthz.HealthChecker
}

// Handle routes path to a handler of package healthz.
func (d healthMux) Handle(path string, handler http.Handler) {
	if next := d.config.Next; path == d.endpoint && next != nil && next.Check != nil {
		handler = d.withChecksBehind(d.endpoint, d.checks, handler)
	}
	for _, check := range d.checks {
		if detailed, ok := check.(DetailedChecker); ok && strings.HasSuffix(path, "/"+check.Name()) {
			handler = withDetail(detailed, handler)
		}
	}
	d.Server.Handle(path, handler)
}

// withDetail answers with details while the check succeeds. Otherwise handler answers.
func withDetail(check DetailedChecker, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if check.Check(req) != nil {
			handler.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, "ok\n", check.Detail()) // the client may have gone
	})
}

// addNextCheck routes /healthz/next-<tier>, which fails while the next tier cannot be
// reached. It is not part of readyz: what this tier owns works without the next tier, and
// would become unreachable if this tier were taken out of rotation.
func (s *Server) addNextCheck(next *Next) {
	s.UnlistedHandle("/healthz/next-"+next.Tier, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := next.Check(req); err != nil {
			http.Error(w, fmt.Sprintf("next tier %s: %v", next.Tier, err), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "ok")
	}))
}

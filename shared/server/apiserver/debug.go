package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"runtime"
	"sync"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/server/statusz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/logs"
	zpagesfeatures "k8s.io/component-base/zpages/features"
)

// The paths of what can be asked of a running process, which are kube-apiserver's.
const (
	flagsPath    = "/debug/flags"
	fairnessPath = "/debug/api_priority_and_fairness/"
	// zpagesComponent is what kube-apiserver calls itself on these pages.
	zpagesComponent = "apiserver"
)

// addDebugRoutes routes the pages below /debug other than profiles: the flags
// that can be set while the server runs, and the state of priority and fairness.
// k8s.io/apiserver installs them on a mux of its own only, so there is one behind
// the routes.
func (s *Server) addDebugRoutes() {
	g := s.config.Generic
	pages := mux.NewPathRecorderMux("debug")
	pages.NotFoundHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.refuse(w, req, http.StatusNotFound)
	}))
	if g.EnableProfiling {
		if g.EnableContentionProfiling {
			runtime.SetBlockProfileRate(1)
		}
		routes.DebugFlags{}.Install(pages, "v", routes.StringFlagPutHandler(logs.GlogSetter))
		s.UnlistedHandle(flagsPath, pages)
		s.UnlistedHandlePrefix(flagsPath+"/", pages)
	}
	if g.FlowControl != nil {
		g.FlowControl.Install(pages)
		s.UnlistedHandlePrefix(fairnessPath, pages)
	}
}

// debugSocket serves profiles and flags, without asking who wants them, on the
// socket that --debug-socket-path names, until ctx ends. Nil if there is none.
func (s *Server) debugSocket() func(ctx context.Context) error {
	path := s.config.Generic.DebugSocketPath
	if path == "" {
		return nil
	}
	socket := routes.NewDebugSocket(path)
	socket.InstallProfiling()
	socket.InstallDebugFlag("v", routes.StringFlagPutHandler(logs.GlogSetter))
	if s.config.Generic.EnableContentionProfiling {
		runtime.SetBlockProfileRate(1)
	}
	return func(ctx context.Context) error {
		err := socket.RunWithContext(ctx)
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("--debug-socket-path=%s: %w", path, err)
	}
}

// installZPages routes /flagz and /statusz (KEP-4828, KEP-4827). The latter lists
// paths, so it is the last to be installed.
func (s *Server) installZPages() {
	gates := utilfeature.DefaultFeatureGate
	if flags := s.config.Generic.Flagz; flags != nil && gates.Enabled(zpagesfeatures.ComponentFlagz) {
		flagz.Install(s, zpagesComponent, flags)
	}
	if gates.Enabled(zpagesfeatures.ComponentStatusz) {
		s.Handle(statusz.DefaultStatuszPath, http.HandlerFunc(s.status))
	}
}

// status answers /statusz. The page is made at each request, because the tiers
// behind this one list paths, too, and they need not have been there before.
func (s *Server) status(w http.ResponseWriter, req *http.Request) {
	var page lastRoute
	version := s.config.Generic.EffectiveVersion
	statusz.Install(&page, zpagesComponent, statusz.NewRegistry(version, statusz.WithListedPaths(s.listedPaths(req))))
	page.handler.ServeHTTP(w, req)
}

// lastRoute keeps the handler that is installed on it.
type lastRoute struct{ handler http.Handler }

// Handle implements the mux that package statusz wants.
func (r *lastRoute) Handle(_ string, handler http.Handler) { r.handler = handler }

// mutexSampling is one of how many times that a goroutine waited for a lock is in a
// profile, see [runtime.SetMutexProfileFraction].
const mutexSampling = 10

// mutexProfile answers /debug/pprof/mutex. The runtime notes nothing about locks unless it
// is told to, and then for everybody who takes one; so it is told to while somebody asks
// for a profile of some seconds. kube-apiserver never does, and its profile is empty.
type mutexProfile struct {
	mu    sync.Mutex
	asked int // requests that are being answered
}

func (p *mutexProfile) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.FormValue("seconds") != "" {
		p.add(1)
		defer p.add(-1)
	}
	pprof.Handler("mutex").ServeHTTP(w, req)
}

// add counts a request that has come or gone.
func (p *mutexProfile) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.asked
	p.asked += n
	switch {
	case before == 0:
		runtime.SetMutexProfileFraction(mutexSampling)
	case p.asked == 0:
		runtime.SetMutexProfileFraction(0)
	}
}

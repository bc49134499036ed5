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

// The paths of the debug pages, which are kube-apiserver's.
const (
	flagsPath    = "/debug/flags"
	fairnessPath = "/debug/api_priority_and_fairness/"
	// zpagesComponent is the name of kube-apiserver on these pages.
	zpagesComponent = "apiserver"
)

// addDebugRoutes routes the pages below /debug other than profiles: the flags that can be
// set at run time, and the state of priority and fairness. k8s.io/apiserver can install them
// only on its own mux, so these routes lead to one.
func (s *Server) addDebugRoutes() {
	g := s.config.Generic
	pages := mux.NewPathRecorderMux("debug")
	pages.NotFoundHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.writeStatus(w, req, http.StatusNotFound)
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

// debugSocket returns a function that serves profiles and flags on the socket
// --debug-socket-path, without authentication, until ctx is cancelled. It is nil if the flag
// is not set.
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

// installZPages routes /flagz and /statusz (KEP-4828, KEP-4827). statusz lists paths, so it
// is installed last.
func (s *Server) installZPages() {
	gates := utilfeature.DefaultFeatureGate
	if flags := s.config.Generic.Flagz; flags != nil && gates.Enabled(zpagesfeatures.ComponentFlagz) {
		flagz.Install(s, zpagesComponent, flags)
	}
	if gates.Enabled(zpagesfeatures.ComponentStatusz) {
		s.Handle(statusz.DefaultStatuszPath, http.HandlerFunc(s.status))
	}
}

// status serves /statusz. It builds the page at each request, because the paths of the tiers
// behind this one may have become available since.
func (s *Server) status(w http.ResponseWriter, req *http.Request) {
	var page handlerRecorder
	version := s.config.Generic.EffectiveVersion
	statusz.Install(&page, zpagesComponent, statusz.NewRegistry(version, statusz.WithListedPaths(s.listedPaths(req))))
	page.handler.ServeHTTP(w, req)
}

// handlerRecorder is a mux that records one handler.
type handlerRecorder struct{ handler http.Handler }

// Handle implements the mux of package statusz.
func (r *handlerRecorder) Handle(_ string, handler http.Handler) { r.handler = handler }

// mutexSampling is the fraction for [runtime.SetMutexProfileFraction]: one of that many
// contention events is sampled.
const mutexSampling = 10

// mutexProfile serves /debug/pprof/mutex. Sampling slows down every lock, so it is enabled
// only during requests for a profile of some seconds. kube-apiserver never enables it, and
// its profile is empty.
type mutexProfile struct {
	mu     sync.Mutex
	active int // requests that are being answered
}

// ServeHTTP implements http.Handler.
func (p *mutexProfile) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.FormValue("seconds") != "" {
		p.add(1)
		defer p.add(-1)
	}
	pprof.Handler("mutex").ServeHTTP(w, req)
}

// add counts the start or the end of a request.
func (p *mutexProfile) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.active
	p.active += n
	switch {
	case before == 0:
		runtime.SetMutexProfileFraction(mutexSampling)
	case p.active == 0:
		runtime.SetMutexProfileFraction(0)
	}
}

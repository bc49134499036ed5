package apiserver

import (
	"net/http"
	"net/http/pprof"
	"sort"

	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	flowcontrolmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
	componentversion "k8s.io/component-base/version"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addPlainRoutes routes what is not an API resource.
func (s *Server) addPlainRoutes() {
	g := s.config.Generic
	version := s.getOnly(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		responsewriters.WriteRawJSON(http.StatusOK, componentversion.Get(), w)
	}))
	s.Handle("/version", version)
	s.UnlistedHandle("/version/", version)
	if g.EnableMetrics {
		metrics.Register()
		flowcontrolmetrics.Register()
		s.Handle("/metrics", legacyregistry.HandlerWithReset())
		slis.SLIMetricsWithReset{}.Install(s)
	}
	if g.EnableProfiling {
		s.UnlistedHandle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
		s.UnlistedHandlePrefix("/debug/pprof/", http.HandlerFunc(pprof.Index))
		s.UnlistedHandle("/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
		s.UnlistedHandle("/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
		s.UnlistedHandle("/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
	}
}

// installIndex routes "/", the list of paths.
func (s *Server) installIndex() {
	if !s.config.Generic.EnableIndex {
		return
	}
	index := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		listed := append([]string{}, s.paths.listed...)
		sort.Strings(listed)
		responsewriters.WriteRawJSON(http.StatusOK, metav1.RootPaths{Paths: listed}, w)
	})
	s.UnlistedHandle("/", index)
	s.UnlistedHandle("/index.html", index)
}

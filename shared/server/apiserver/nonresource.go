package apiserver

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	flowcontrolmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	proxymetrics "k8s.io/apiserver/pkg/util/proxy/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"

	"triune.dev/shared/server/resources"
	"triune.dev/shared/transport/documents"
)

// addNonResourceRoutes adds the routes that serve no API resources.
func (s *Server) addNonResourceRoutes() {
	g := s.config.Generic
	jsonOnly := []string{runtime.ContentTypeJSON}
	version := s.GetOnly(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		responsewriters.WriteRawJSON(http.StatusOK, g.EffectiveVersion.Info(), w)
	}), resources.Media{Consumes: jsonOnly, Produces: jsonOnly})
	s.Handle("/version", version)
	s.UnlistedHandle("/version/", version)
	s.paths.addDocument("/version")
	if g.EnableMetrics {
		metrics.Register()
		handlersmetrics.Register()
		proxymetrics.Register()
		flowcontrolmetrics.Register()
		if g.EnableProfiling {
			s.Handle("/metrics", legacyregistry.HandlerWithReset())
			slis.SLIMetricsWithReset{}.Install(s)
		} else {
			s.Handle("/metrics", legacyregistry.Handler())
			slis.SLIMetrics{}.Install(s)
		}
	}
	if g.EnableProfiling {
		s.UnlistedHandle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
		s.UnlistedHandlePrefix("/debug/pprof/", http.HandlerFunc(pprof.Index))
		s.UnlistedHandle("/debug/pprof/mutex", new(mutexProfile))
		s.UnlistedHandle("/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
		s.UnlistedHandle("/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
		s.UnlistedHandle("/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
	}
	s.addDebugRoutes()
	if next := s.config.Next; next != nil && next.Replicas != nil {
		s.UnlistedHandlePrefix(BehindPrefix, http.HandlerFunc(s.serveBehind))
	}
}

// installIndex routes "/" to the list of paths.
func (s *Server) installIndex() {
	if !s.config.Generic.EnableIndex {
		return
	}
	index := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		responsewriters.WriteRawJSON(http.StatusOK, metav1.RootPaths{Paths: s.listedPaths(req)}, w)
	})
	s.UnlistedHandle("/", index)
	s.UnlistedHandle("/index.html", index)
}

// listedPaths returns the sorted paths that this tier and the tiers behind it list.
func (s *Server) listedPaths(req *http.Request) []string {
	listed := append(s.nextPaths(req), s.paths.listed...)
	if s.config.Listed != nil {
		listed = append(listed, s.config.Listed()...)
	}
	slices.Sort(listed)
	return slices.Compact(listed)
}

// nextPaths returns the paths that the tiers behind this one list, or none if they do not
// answer.
func (s *Server) nextPaths(req *http.Request) []string {
	if s.config.Next == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(req.Context(), discoveryTimeout)
	defer cancel()
	answer, err := documents.Document(ctx, documents.Handler(s.config.Next.Handler), documents.Query{Path: "/"})
	if err != nil {
		return nil
	}
	var list metav1.RootPaths
	if err := json.Unmarshal(answer.Body, &list); err != nil {
		return nil
	}
	return list.Paths
}

package aggregator

import (
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/services/aggregator/internal/apiservices"
	"triune.dev/services/aggregator/internal/autoregister"
	"triune.dev/services/aggregator/internal/discovery"
	"triune.dev/services/aggregator/internal/remote"
	"triune.dev/shared/server/openapi/merged"
)

// owns returns the handler for a path without a route, if this tier serves it: paths below a
// group-version whose APIService names a Service, and the documents of groups with an APIService.
func (s *Server) owns(path string) (http.Handler, bool) {
	snapshot := s.table.Current()
	if gv, ok := apiservices.GroupVersionOf(path); ok {
		if snapshot == nil {
			// The owner is unknown until the table is built, except for built-in
			// group-versions, which belong to the next tier.
			_, builtIn := autoregister.BuiltIn(gv)
			return http.HandlerFunc(discovery.ServeUnavailable), !builtIn
		}
		if backend := snapshot.Backend(gv); backend != nil {
			return backend, true
		}
		return nil, false
	}
	group, ok := groupOf(path)
	if !ok {
		return nil, false
	}
	if snapshot == nil {
		return http.HandlerFunc(discovery.ServeUnavailable), true
	}
	if _, ok := snapshot.Group(group); !ok {
		return nil, false
	}
	// For all methods, as in kube-apiserver.
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.discovery.ServeGroup(w, req, group)
	}), true
}

// listed returns the paths of the groups and group-versions with an APIService, which "/" lists.
func (s *Server) listed() []string {
	snapshot := s.table.Current()
	if snapshot == nil {
		return nil
	}
	var paths []string
	for _, group := range snapshot.Groups() {
		paths = append(paths, "/apis/"+group.Name)
		for _, version := range group.Versions {
			paths = append(paths, "/apis/"+version.GroupVersion)
		}
	}
	return paths
}

// groupOf returns the group of /apis/<group>, with or without a trailing slash.
func groupOf(path string) (string, bool) {
	group, ok := strings.CutPrefix(path, "/apis/")
	group = strings.TrimSuffix(group, "/")
	return group, ok && group != "" && !strings.Contains(group, "/")
}

// priorityOf returns the priority of a group-version that is not remote.
func priorityOf(gv schema.GroupVersion) discovery.Priority {
	if gv.Group == ownGroup {
		return discovery.Priority{Group: ownPriority}
	}
	priority := autoregister.PriorityOf(gv)
	return discovery.Priority{Group: int(priority.Group), Version: int(priority.Version)}
}

const (
	ownGroup = "apiregistration.k8s.io"
	// ownPriority is higher than the maximum in an APIService (20000): this tier's own group
	// comes first, as in kube-apiserver.
	ownPriority = 20001
	// buildPatience bounds the wait of a request until a tier has built its OpenAPI documents.
	buildPatience = 30 * time.Second
	// extensionFresh is how long the OpenAPI of an extension server is considered fresh.
	extensionFresh = 10 * time.Second
)

// openapiSources returns one OpenAPI source per extension server, for all of its APIServices.
func openapiSources(snapshot *apiservices.Snapshot) []merged.Source {
	var sources []merged.Source
	at := map[remote.Server]int{}
	for _, backend := range snapshot.Backends() {
		spec := backend.APIService().Spec
		if spec.Group == ownGroup {
			continue // this tier's own group
		}
		gv := schema.GroupVersion{Group: spec.Group, Version: spec.Version}
		key := backend.Server()
		if i, ok := at[key]; ok {
			sources[i].GroupVersions = append(sources[i].GroupVersions, gv)
			continue
		}
		at[key] = len(sources)
		sources = append(sources, merged.Source{
			Name:          key.String(),
			From:          backend,
			Handler:       backend,
			GroupVersions: []schema.GroupVersion{gv},
			Fresh:         extensionFresh,
		})
	}
	return sources
}

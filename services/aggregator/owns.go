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

// owns says of a path that is not one of our routes whether we serve it: below a
// group-version whose APIService names a Service, and the document of a group
// that has an APIService.
func (s *Server) owns(path string) (http.Handler, bool) {
	snapshot := s.table.Current()
	if gv, ok := apiservices.GroupVersionOf(path); ok {
		if snapshot == nil {
			// Until the table has been read nobody knows whose this is. What is
			// built into Kubernetes can safely be taken for the next tier's.
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
	// Whatever the method is, as in kube-apiserver.
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.discovery.ServeGroup(w, req, group)
	}), true
}

// listed returns the paths of the groups that have an APIService, whichever tier
// serves them, as "/" lists them.
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

// groupOf returns the group of /apis/<group>, with or without a slash behind it.
func groupOf(path string) (string, bool) {
	group, ok := strings.CutPrefix(path, "/apis/")
	group = strings.TrimSuffix(group, "/")
	return group, ok && group != "" && !strings.Contains(group, "/")
}

// placeOf is where a group-version that is not remote stands in discovery.
func priorityOf(gv schema.GroupVersion) discovery.Priority {
	if gv.Group == ownGroup {
		return discovery.Priority{Group: ownPriority}
	}
	priority := autoregister.PriorityOf(gv)
	return discovery.Priority{Group: int(priority.Group), Version: int(priority.Version)}
}

const (
	ownGroup = "apiregistration.k8s.io"
	// ownPriority is above what an APIService can ask for (20000), so that our
	// own group comes first, as in kube-apiserver.
	ownPriority = 20001
	// buildPatience is how long a request waits for a tier to build its OpenAPI
	// documents for the first time.
	buildPatience = 30 * time.Second
	// extensionFresh is how long an extension server's OpenAPI counts as present.
	extensionFresh = 10 * time.Second
)

// openapiSources lists the extension servers as sources of OpenAPI, one for all
// APIServices of a server.
func openapiSources(snapshot *apiservices.Snapshot) []merged.Source {
	var sources []merged.Source
	at := map[remote.Server]int{}
	for _, backend := range snapshot.Backends() {
		spec := backend.APIService().Spec
		if spec.Group == ownGroup {
			continue // that is ours, whatever an APIService says
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

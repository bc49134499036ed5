package apiservices

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"triune.dev/services/aggregator/internal/remote"
)

// Snapshot is the immutable table at one point in time.
type Snapshot struct {
	all      []*apiregistrationv1.APIService
	byGV     map[schema.GroupVersion]*apiregistrationv1.APIService
	backends map[schema.GroupVersion]*remote.Backend
	groups   []metav1.APIGroup
}

// Build returns a snapshot. It reuses the Backends of previous, which may be nil, for unchanged
// APIServices, and creates the others with backend.
func Build(all []*apiregistrationv1.APIService, previous *Snapshot, backend func(*apiregistrationv1.APIService) *remote.Backend) *Snapshot {
	s := &Snapshot{
		all:      slices.Clone(all),
		byGV:     make(map[schema.GroupVersion]*apiregistrationv1.APIService, len(all)),
		backends: map[schema.GroupVersion]*remote.Backend{},
	}
	slices.SortFunc(s.all, func(a, b *apiregistrationv1.APIService) int { return strings.Compare(a.Name, b.Name) })
	for _, apiService := range s.all {
		gv := schema.GroupVersion{Group: apiService.Spec.Group, Version: apiService.Spec.Version}
		s.byGV[gv] = apiService
		if apiService.Spec.Service == nil {
			continue
		}
		if previous != nil {
			if have := previous.backends[gv]; have != nil && have.APIService() == apiService {
				s.backends[gv] = have
				continue
			}
		}
		s.backends[gv] = backend(apiService)
	}
	s.groups = groupsOf(s.all)
	return s
}

// groupsOf returns all groups except the legacy group.
func groupsOf(all []*apiregistrationv1.APIService) []metav1.APIGroup {
	// SortedByGroupAndVersion sorts its argument in place.
	sorted := apiregistrationhelper.SortedByGroupAndVersion(slices.Clone(all))
	groups := make([]metav1.APIGroup, 0, len(sorted))
	for _, versions := range sorted {
		name := versions[0].Spec.Group
		if name == "" {
			continue
		}
		group := metav1.APIGroup{Name: name, Versions: make([]metav1.GroupVersionForDiscovery, len(versions))}
		for i, apiService := range versions {
			group.Versions[i] = metav1.GroupVersionForDiscovery{
				GroupVersion: name + "/" + apiService.Spec.Version,
				Version:      apiService.Spec.Version,
			}
		}
		group.PreferredVersion = group.Versions[0]
		groups = append(groups, group)
	}
	return groups
}

// All returns the APIServices, sorted by name. The caller must not modify them.
func (s *Snapshot) All() []*apiregistrationv1.APIService { return s.all }

// Groups returns the groups of /apis in their order, except apiregistration.k8s.io, which has no
// APIService. The caller must not modify them.
func (s *Snapshot) Groups() []metav1.APIGroup { return s.groups }

// Group returns the group with the given name, or false if there is none.
func (s *Snapshot) Group(name string) (metav1.APIGroup, bool) {
	i := slices.IndexFunc(s.groups, func(g metav1.APIGroup) bool { return g.Name == name })
	if i < 0 {
		return metav1.APIGroup{}, false
	}
	return s.groups[i], true
}

// APIService returns the APIService of a group-version, or nil.
func (s *Snapshot) APIService(gv schema.GroupVersion) *apiregistrationv1.APIService {
	return s.byGV[gv]
}

// Backend returns the Backend of a group-version, or nil if it is not remote.
func (s *Snapshot) Backend(gv schema.GroupVersion) *remote.Backend { return s.backends[gv] }

// Backends returns all Backends, sorted by the names of their APIServices.
func (s *Snapshot) Backends() []*remote.Backend {
	backends := make([]*remote.Backend, 0, len(s.backends))
	for _, apiService := range s.all {
		gv := schema.GroupVersion{Group: apiService.Spec.Group, Version: apiService.Spec.Version}
		if backend := s.backends[gv]; backend != nil && backend.APIService() == apiService {
			backends = append(backends, backend)
		}
	}
	return backends
}

// GroupVersionOf returns the group-version that a path belongs to: /apis/<group>/<version> and
// paths below it, or /api and paths below it, because the legacy group has a single version.
func GroupVersionOf(path string) (schema.GroupVersion, bool) {
	rest, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		if path == "/api" || strings.HasPrefix(path, "/api/") {
			return schema.GroupVersion{Version: "v1"}, true
		}
		return schema.GroupVersion{}, false
	}
	group, rest, _ := strings.Cut(rest, "/")
	version, _, _ := strings.Cut(rest, "/")
	if group == "" || version == "" {
		return schema.GroupVersion{}, false
	}
	return schema.GroupVersion{Group: group, Version: version}, true
}

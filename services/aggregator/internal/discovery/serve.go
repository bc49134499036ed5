package discovery

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	endpointdiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"triune.dev/services/aggregator/internal/scheme"
)

// ServeGroups answers /apis: aggregated discovery for clients that ask for it,
// the list of groups for the others.
func (m *Manager) ServeGroups(w http.ResponseWriter, req *http.Request) {
	m.current(req.Context())
	if wantsAggregated(req) {
		m.serve(w, req, m.apis.Load())
		return
	}
	m.mu.Lock()
	snapshot := m.snapshot
	m.mu.Unlock()
	if snapshot == nil {
		NotYet(w, req)
		return
	}
	write(w, req, &metav1.APIGroupList{Groups: slices.Concat([]metav1.APIGroup{m.ownGroup()}, snapshot.Groups())})
}

// ServeGroup answers /apis/<group> and reports whether the group is known here;
// if not, nothing has been written.
func (m *Manager) ServeGroup(w http.ResponseWriter, req *http.Request, name string) bool {
	if name == m.own.Name {
		group := m.ownGroup()
		write(w, req, &group)
		return true
	}
	m.mu.Lock()
	snapshot := m.snapshot
	m.mu.Unlock()
	if snapshot == nil {
		return false
	}
	group, ok := snapshot.Group(name)
	if ok {
		write(w, req, &group)
	}
	return ok
}

// ServeLegacy answers /api. addresses says under which address a client reaches
// us.
func (m *Manager) ServeLegacy(addresses endpointdiscovery.Addresses) http.HandlerFunc {
	versions := endpointdiscovery.NewLegacyRootAPIHandler(addresses, scheme.Codecs, "/api")
	return func(w http.ResponseWriter, req *http.Request) {
		if wantsAggregated(req) {
			m.serve(w, req, m.api.Load())
			return
		}
		versions.ServeHTTP(w, req)
	}
}

func (m *Manager) serve(w http.ResponseWriter, req *http.Request, d *document) {
	if d == nil {
		NotYet(w, req)
		return
	}
	d.ServeHTTP(w, req)
}

// ownGroup is the own group as legacy discovery tells it.
func (m *Manager) ownGroup() metav1.APIGroup {
	group := metav1.APIGroup{Name: m.own.Name}
	for _, v := range m.own.Versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: m.own.Name + "/" + v.Version,
			Version:      v.Version,
		})
	}
	if len(group.Versions) > 0 {
		group.PreferredVersion = group.Versions[0]
	}
	return group
}

func write(w http.ResponseWriter, req *http.Request, object runtime.Object) {
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, req, http.StatusOK, object, false)
}

// NotYet answers while we do not know what there is: a shorter list would be
// taken for the truth, by the garbage collector for one.
func NotYet(w http.ResponseWriter, req *http.Request) {
	err := apierrors.NewServiceUnavailable("the list of APIs has not been read yet")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	responsewriters.ErrorNegotiated(err, scheme.Codecs, schema.GroupVersion{}, w, req)
}

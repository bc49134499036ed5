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
	"triune.dev/shared/server/apiserver"
)

// ServeGroups answers /apis with aggregated discovery, or with the list of groups for older
// clients.
func (m *Manager) ServeGroups(w http.ResponseWriter, req *http.Request) {
	m.waitCurrent(req.Context())
	if wantsAggregated(req) {
		m.serve(w, req, m.apis.Load())
		return
	}
	groups, ok := m.groups()
	if !ok {
		ServeUnavailable(w, req)
		return
	}
	write(w, req, &metav1.APIGroupList{Groups: groups})
}

// groups returns all known groups, or false if they are incomplete: the groups with an APIService,
// and those of the next tier without one. The next tier may list a group only to show that a tier
// behind it is down.
func (m *Manager) groups() ([]metav1.APIGroup, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isIncompleteLocked() {
		return nil, false
	}
	groups := slices.Concat([]metav1.APIGroup{m.ownGroup()}, m.snapshot.Groups())
	for _, group := range m.next.apis {
		if !slices.ContainsFunc(groups, func(g metav1.APIGroup) bool { return g.Name == group.Name }) {
			groups = append(groups, apiserver.ToAPIGroup(group))
		}
	}
	return groups, true
}

// ServeGroup answers /apis/<group> and reports whether the group is known. If not, it writes
// nothing.
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

// ServeLegacy answers /api. addresses returns the address of this server for a client.
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
		ServeUnavailable(w, req)
		return
	}
	d.ServeHTTP(w, req)
}

func (m *Manager) ownGroup() metav1.APIGroup { return apiserver.ToAPIGroup(m.own) }

func write(w http.ResponseWriter, req *http.Request, object runtime.Object) {
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, req, http.StatusOK, object, false)
}

// ServeUnavailable answers 503 while the list of APIs is incomplete: clients such as the garbage
// collector would take a shorter list for complete.
func ServeUnavailable(w http.ResponseWriter, req *http.Request) {
	err := apierrors.NewServiceUnavailable("the list of APIs has not been read yet")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	responsewriters.ErrorNegotiated(err, scheme.Codecs, schema.GroupVersion{}, w, req)
}

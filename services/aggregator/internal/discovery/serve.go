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

// ServeGroups answers /apis: aggregated discovery for clients that ask for it,
// the list of groups for the others.
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

// groups returns every group that is known, and whether that is enough to answer with:
// those with an APIService, and those that the next tier names although they have none
// yet. The latter may be there only to show that something is missing.
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
		ServeUnavailable(w, req)
		return
	}
	d.ServeHTTP(w, req)
}

func (m *Manager) ownGroup() metav1.APIGroup { return apiserver.ToAPIGroup(m.own) }

func write(w http.ResponseWriter, req *http.Request, object runtime.Object) {
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, req, http.StatusOK, object, false)
}

// NotYet answers while we do not know what there is: a shorter list would be
// taken for the truth, by the garbage collector for one.
func ServeUnavailable(w http.ResponseWriter, req *http.Request) {
	err := apierrors.NewServiceUnavailable("the list of APIs has not been read yet")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	responsewriters.ErrorNegotiated(err, scheme.Codecs, schema.GroupVersion{}, w, req)
}

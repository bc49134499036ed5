package apiserver

import (
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"triune.dev/shared/server/resources"
	"triune.dev/shared/transport/documents"
)

// discoveryRoutes answers what is served: /api, /apis, and a document per group
// and per group-version.
//
// A tier's /api and /apis tell what it and every tier behind it serve, so the
// tier in front needs to ask only this one. What the next tier serves is fetched
// when somebody asks, conditionally, and is kept while it cannot be had.
//
// Neither ever looks complete when it is not, for the namespace controller, garbage
// collection and quotas would skip what is missing: what is known to exist is listed
// as Stale, and while the tier does not know its own groups it answers 503.
type discoveryRoutes struct {
	server *Server
	legacy bool // this tier serves the legacy group
	// behind is what the next tier serves below /apis, nil without one.
	behind *nextDiscovery
}

func newDiscoveryRoutes(s *Server) *discoveryRoutes {
	g := s.config.Generic
	if g.DiscoveryAddresses == nil {
		g.DiscoveryAddresses = discovery.DefaultAddresses{DefaultAddress: g.ExternalAddress}
	}
	s.Groups = discovery.NewRootAPIsHandler(g.DiscoveryAddresses, g.Serializer)
	return &discoveryRoutes{server: s}
}

// publish adds a group of the table.
func (d *discoveryRoutes) publish(group resources.Group) error {
	s := d.server
	manager := s.Aggregated
	if group.Prefix == resources.LegacyPrefix {
		manager, d.legacy = s.AggregatedLegacy, true
	}
	document := metav1.APIGroup{Name: group.Name}
	for _, version := range group.Versions {
		list := make([]metav1.APIResource, 0, len(version.Resources()))
		for _, resource := range version.Resources() {
			list = append(list, resource.Discovery)
		}
		described, err := endpoints.ConvertGroupVersionIntoToDiscovery(list)
		if err != nil {
			return err
		}
		manager.AddGroupVersion(group.Name, apidiscoveryv2.APIVersionDiscovery{
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			Version:   version.Version,
			Resources: described,
		})
		document.Versions = append(document.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: version.GroupVersion.String(), Version: version.Version,
		})
		lister := discovery.APIResourceListerFunc(func() []metav1.APIResource { return list })
		serializer := version.Serializer
		if group.Prefix == resources.LegacyPrefix {
			// Upstream strips the version of this document in a way that panics for CBOR.
			serializer = s.config.Generic.Serializer
		}
		handler := discovery.NewAPIVersionHandler(serializer, version.GroupVersion, lister)
		d.document(version.Root, s.GetOnly(handler, documentMedia(serializer)))
	}
	if group.Prefix == resources.LegacyPrefix {
		return nil
	}
	document.PreferredVersion = document.Versions[0]
	s.Groups.AddGroup(document)
	d.document(resources.GroupPrefix+"/"+group.Name, s.DocumentOnly(discovery.NewAPIGroupHandler(s.config.Generic.Serializer, document)))
	return nil
}

// route serves a document at path, with and without a trailing slash.
func (d *discoveryRoutes) route(path string, handler http.Handler) {
	s := d.server
	s.Handle(path, handler)
	s.UnlistedHandle(path+"/", handler)
}

// document is route with more slashes behind the path, too.
func (d *discoveryRoutes) document(path string, handler http.Handler) {
	d.route(path, handler)
	d.server.paths.addDocument(path)
}

// install routes the roots, unless the tier has put its own there.
func (d *discoveryRoutes) install() {
	s := d.server
	if !s.config.Generic.EnableDiscovery {
		return
	}
	g := s.config.Generic
	if !s.paths.owns(resources.GroupPrefix) {
		d.behind = d.next(resources.GroupPrefix, s.Aggregated, s.Groups)
		groups := aggregated.WrapAggregatedDiscoveryToHandler(s.Groups, s.Aggregated, nil)
		d.route(resources.GroupPrefix, s.GetOnly(d.behind.before(s.oncePathsAreKnown(groups)), resources.Media{}))
	}
	if d.legacy && !s.paths.owns(resources.LegacyPrefix) {
		versions := discovery.NewLegacyRootAPIHandler(g.DiscoveryAddresses, g.Serializer, resources.LegacyPrefix)
		next := d.next(resources.LegacyPrefix, s.AggregatedLegacy, nil)
		d.document(resources.LegacyPrefix, s.DocumentOnly(next.before(aggregated.WrapAggregatedDiscoveryToHandler(versions, s.AggregatedLegacy, nil))))
	}
}

func (d *discoveryRoutes) next(path string, manager aggregated.ResourceManager, groups discovery.GroupManager) *nextDiscovery {
	if d.server.config.Next == nil {
		return nil
	}
	n := &nextDiscovery{
		path:    path,
		from:    documents.Handler(d.server.config.Next.Handler),
		manager: manager.WithSource(aggregated.CRDSource),
		groups:  groups,
	}
	if path == resources.GroupPrefix {
		n.expect(d.server.config.Next.Serves)
	}
	return n
}

// oncePathsAreKnown answers 503 until all that AwaitPaths waits for has come.
func (s *Server) oncePathsAreKnown(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for _, pending := range s.lifecycle.muxPending {
			select {
			case <-pending:
			default:
				s.refuseForNow(w, req)
				return
			}
		}
		handler.ServeHTTP(w, req)
	})
}

// GetOnly is handler for GET and 405 for the rest, and 415 or 406 for requests that
// have no media type in common with media. In kube-apiserver it is the router that
// refuses those.
func (s *Server) GetOnly(handler http.Handler, media resources.Media) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			s.refuse(w, req, http.StatusMethodNotAllowed)
			return
		}
		if media.Negotiable(w, req, s.config.Generic.Serializer) {
			handler.ServeHTTP(w, req)
		}
	})
}

// DocumentOnly is GetOnly for a document in any form that the tier's serializer knows.
func (s *Server) DocumentOnly(handler http.Handler) http.Handler {
	return s.GetOnly(handler, documentMedia(s.config.Generic.Serializer))
}

func documentMedia(serializer runtime.NegotiatedSerializer) resources.Media {
	types, _ := negotiation.MediaTypesForSerializer(serializer)
	return resources.Media{Consumes: types, Produces: types}
}

// LegacyGroup returns a group of aggregated discovery as the older documents describe
// it.
func LegacyGroup(group apidiscoveryv2.APIGroupDiscovery) metav1.APIGroup {
	document := metav1.APIGroup{Name: group.Name}
	for _, version := range group.Versions {
		document.Versions = append(document.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: strings.TrimPrefix(group.Name+"/"+version.Version, "/"),
			Version:      version.Version,
		})
	}
	if len(document.Versions) > 0 {
		document.PreferredVersion = document.Versions[0]
	}
	return document
}

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

// discoveryRoutes serves discovery: /api, /apis, and a document for each group and each
// group-version.
//
// A tier's /api and /apis include the groups of every tier behind it, so that the tier in
// front asks only this one. The groups of the next tier are fetched on request,
// conditionally, and are kept while it is not available.
//
// The documents never look complete if they are not, because the namespace controller,
// garbage collection and quotas would skip missing resources: groups known to exist are
// listed as Stale, and while the tier does not know its own groups it answers 503.
type discoveryRoutes struct {
	server *Server
	legacy bool // this tier serves the legacy group
	// next holds the groups of the next tier below /apis. It is nil without a next tier.
	next *nextDiscovery
}

func newDiscoveryRoutes(s *Server) *discoveryRoutes {
	g := s.config.Generic
	if g.DiscoveryAddresses == nil {
		g.DiscoveryAddresses = discovery.DefaultAddresses{DefaultAddress: g.ExternalAddress}
	}
	s.Groups = discovery.NewRootAPIsHandler(g.DiscoveryAddresses, g.Serializer)
	return &discoveryRoutes{server: s}
}

// publish adds a group of the resource table.
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
			// The handler of k8s.io/apiserver that strips the version of this document panics
			// for CBOR.
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

// route routes path to handler, with and without a trailing slash.
func (d *discoveryRoutes) route(path string, handler http.Handler) {
	s := d.server
	s.Handle(path, handler)
	s.UnlistedHandle(path+"/", handler)
}

// document routes path to handler, with any number of trailing slashes.
func (d *discoveryRoutes) document(path string, handler http.Handler) {
	d.route(path, handler)
	d.server.paths.addDocument(path)
}

// install routes /apis and /api, unless the tier has its own routes there.
func (d *discoveryRoutes) install() {
	s := d.server
	if !s.config.Generic.EnableDiscovery {
		return
	}
	g := s.config.Generic
	if !s.paths.owns(resources.GroupPrefix) {
		d.next = d.newNext(resources.GroupPrefix, s.Aggregated, s.Groups)
		groups := aggregated.WrapAggregatedDiscoveryToHandler(s.Groups, s.Aggregated, nil)
		d.route(resources.GroupPrefix, s.GetOnly(d.next.refreshBefore(s.afterPathsKnown(groups)), resources.Media{}))
	}
	if d.legacy && !s.paths.owns(resources.LegacyPrefix) {
		versions := discovery.NewLegacyRootAPIHandler(g.DiscoveryAddresses, g.Serializer, resources.LegacyPrefix)
		next := d.newNext(resources.LegacyPrefix, s.AggregatedLegacy, nil)
		d.document(resources.LegacyPrefix, s.DocumentOnly(next.refreshBefore(aggregated.WrapAggregatedDiscoveryToHandler(versions, s.AggregatedLegacy, nil))))
	}
}

// newNext returns the discovery of the next tier at path, or nil without a next tier.
func (d *discoveryRoutes) newNext(path string, manager aggregated.ResourceManager, groups discovery.GroupManager) *nextDiscovery {
	if d.server.config.Next == nil {
		return nil
	}
	n := &nextDiscovery{
		path:    path,
		getter:  documents.Handler(d.server.config.Next.Handler),
		manager: manager.WithSource(aggregated.CRDSource),
		groups:  groups,
	}
	if path == resources.GroupPrefix {
		n.expect(d.server.config.Next.AlwaysServes)
	}
	return n
}

// afterPathsKnown answers 503 until all signals of AwaitPaths have been received.
func (s *Server) afterPathsKnown(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for _, pending := range s.lifecycle.muxPending {
			select {
			case <-pending:
			default:
				s.writePathsNotReady(w, req)
				return
			}
		}
		handler.ServeHTTP(w, req)
	})
}

// GetOnly returns a handler that passes GET to handler. It answers 405 to other methods, and
// 415 or 406 to requests that have no media type in common with media. In kube-apiserver
// the router does that.
func (s *Server) GetOnly(handler http.Handler, media resources.Media) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			s.writeStatus(w, req, http.StatusMethodNotAllowed)
			return
		}
		if media.Negotiable(w, req, s.config.Generic.Serializer) {
			handler.ServeHTTP(w, req)
		}
	})
}

// DocumentOnly returns GetOnly for a document in any media type of the tier's serializer.
func (s *Server) DocumentOnly(handler http.Handler) http.Handler {
	return s.GetOnly(handler, documentMedia(s.config.Generic.Serializer))
}

func documentMedia(serializer runtime.NegotiatedSerializer) resources.Media {
	types, _ := negotiation.MediaTypesForSerializer(serializer)
	return resources.Media{Consumes: types, Produces: types}
}

// ToAPIGroup converts a group of aggregated discovery to the older form.
func ToAPIGroup(group apidiscoveryv2.APIGroupDiscovery) metav1.APIGroup {
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

package discovery

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"triune.dev/services/extensions/internal/scheme"
)

// The priorities of the group-versions of CRDs in kube-aggregator. They determine the order
// in /apis and which group a short name refers to.
const (
	groupPriority   = 1000
	versionPriority = 100
)

// Groups is the unaggregated form of /apis. Its methods are safe for concurrent use.
type Groups interface {
	AddGroup(metav1.APIGroup)
	RemoveGroup(name string)
}

// Aggregated is the aggregated form of /apis. Its methods are safe for concurrent
// use.
type Aggregated interface {
	AddGroupVersion(group string, value apidiscoveryv2.APIVersionDiscovery)
	SetGroupVersionPriority(gv metav1.GroupVersion, group, version int)
	RemoveGroupVersion(gv metav1.GroupVersion)
}

// Publisher keeps the documents of all CRDs and serves those of groups and
// group-versions. It is safe for concurrent use.
type Publisher struct {
	groups     Groups
	aggregated Aggregated

	documents atomic.Pointer[documents]

	// mu serialises Put and Remove and guards crds.
	mu sync.Mutex
	// crds holds the CRDs by group and name.
	crds map[string]map[string]*apiextensionsv1.CustomResourceDefinition
}

// documents are the handlers of all documents at one time. It is immutable.
type documents struct {
	groups   map[string]http.Handler
	versions map[schema.GroupVersion]http.Handler
}

// NewPublisher returns a publisher without CRDs, which updates both forms of /apis.
func NewPublisher(groups Groups, aggregated Aggregated) *Publisher {
	p := &Publisher{
		groups:     groups,
		aggregated: aggregated,
		crds:       map[string]map[string]*apiextensionsv1.CustomResourceDefinition{},
	}
	p.documents.Store(&documents{})
	return p
}

// Put publishes crd if it is established. crd must not be changed afterwards.
func (p *Publisher) Put(crd *apiextensionsv1.CustomResourceDefinition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := crd.Spec.Group
	before := p.describeLocked(name)
	if p.crds[name] == nil {
		p.crds[name] = map[string]*apiextensionsv1.CustomResourceDefinition{}
	}
	p.crds[name][crd.Name] = crd
	p.publishLocked(before, p.describeLocked(name))
}

// Remove withdraws crd.
func (p *Publisher) Remove(crd *apiextensionsv1.CustomResourceDefinition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := crd.Spec.Group
	before := p.describeLocked(name)
	delete(p.crds[name], crd.Name)
	if len(p.crds[name]) == 0 {
		delete(p.crds, name)
	}
	p.publishLocked(before, p.describeLocked(name))
}

// Find returns the handler of path, "/apis/{group}" or "/apis/{group}/{version}" with or
// without a trailing slash, if a CRD serves it.
func (p *Publisher) Find(path string) (http.Handler, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] != "apis" {
		return nil, false
	}
	now := p.documents.Load()
	var handler http.Handler
	switch len(parts) {
	case 2:
		handler = now.groups[parts[1]]
	case 3:
		handler = now.versions[schema.GroupVersion{Group: parts[1], Version: parts[2]}]
	}
	return handler, handler != nil
}

func (p *Publisher) describeLocked(name string) group {
	return describe(name, slices.Collect(maps.Values(p.crds[name])))
}

// publishLocked replaces the description of a group.
func (p *Publisher) publishLocked(before, after group) {
	old := p.documents.Load()
	next := &documents{groups: maps.Clone(old.groups), versions: maps.Clone(old.versions)}
	if next.groups == nil {
		next.groups, next.versions = map[string]http.Handler{}, map[schema.GroupVersion]http.Handler{}
	}
	for _, v := range before.versions {
		delete(next.versions, schema.GroupVersion{Group: before.name, Version: v.name})
	}
	for _, v := range after.versions {
		gv := schema.GroupVersion{Group: after.name, Version: v.name}
		next.versions[gv] = discovery.NewAPIVersionHandler(scheme.Codecs, gv, discovery.APIResourceListerFunc(func() []metav1.APIResource {
			return v.resources
		}))
	}
	if len(after.versions) == 0 {
		delete(next.groups, after.name)
	} else {
		next.groups[after.name] = discovery.NewAPIGroupHandler(scheme.Codecs, after.document())
	}
	p.documents.Store(next)
	p.updateGroups(before, after)
}

// updateGroups updates both forms of /apis. It adds new versions before it removes old
// ones, so that the group does not disappear in between.
func (p *Publisher) updateGroups(before, after group) {
	for _, v := range after.versions {
		p.aggregated.AddGroupVersion(after.name, apidiscoveryv2.APIVersionDiscovery{
			Version:   v.name,
			Resources: v.aggregated,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		})
		p.aggregated.SetGroupVersionPriority(metav1.GroupVersion{Group: after.name, Version: v.name}, groupPriority, versionPriority)
	}
	for _, v := range before.versions {
		if !slices.ContainsFunc(after.versions, func(now version) bool { return now.name == v.name }) {
			p.aggregated.RemoveGroupVersion(metav1.GroupVersion{Group: before.name, Version: v.name})
		}
	}
	switch {
	case len(after.versions) > 0:
		p.groups.AddGroup(after.document())
	case len(before.versions) > 0:
		p.groups.RemoveGroup(before.name)
	}
}

// document returns the unaggregated document of the group, which must have versions.
func (g group) document() metav1.APIGroup {
	document := metav1.APIGroup{Name: g.name}
	for _, v := range g.versions {
		document.Versions = append(document.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: schema.GroupVersion{Group: g.name, Version: v.name}.String(),
			Version:      v.name,
		})
	}
	document.PreferredVersion = document.Versions[0]
	return document
}

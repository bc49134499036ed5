package discovery

import (
	"cmp"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

// The verbs of an object and of its subresources, in the order of kube-apiserver's
// documents. While a CRD is terminating, objects cannot be created or changed.
var (
	objectVerbs      = metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	terminatingVerbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	subresourceVerbs = metav1.Verbs{"get", "patch", "update"}
)

// group describes an API group in discovery.
type group struct {
	name string
	// versions are in the order of preference.
	versions []version
}

// version describes a group-version, with its resources in both forms of discovery.
type version struct {
	name       string
	resources  []metav1.APIResource
	aggregated []apidiscoveryv2.APIResourceDiscovery
}

// describe returns the group that the established CRDs serve, with its resources sorted by
// name. If the result has no versions, the group does not exist.
func describe(name string, crds []*apiextensionsv1.CustomResourceDefinition) group {
	crds = slices.Clone(crds)
	slices.SortFunc(crds, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	versions := map[string]*version{}
	for _, crd := range crds {
		if crd.Spec.Group != name || !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			continue
		}
		for i := range crd.Spec.Versions {
			v := &crd.Spec.Versions[i]
			if !v.Served {
				continue
			}
			if versions[v.Name] == nil {
				versions[v.Name] = &version{name: v.Name}
			}
			versions[v.Name].add(crd, v)
		}
	}
	g := group{name: name}
	for _, v := range versions {
		g.versions = append(g.versions, *v)
	}
	slices.SortFunc(g.versions, func(a, b version) int {
		return kubeversion.CompareKubeAwareVersionStrings(b.name, a.name)
	})
	return g
}

func (v *version) add(crd *apiextensionsv1.CustomResourceDefinition, spec *apiextensionsv1.CustomResourceDefinitionVersion) {
	names := crd.Status.AcceptedNames
	namespaced, scope := false, apidiscoveryv2.ScopeCluster
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		namespaced, scope = true, apidiscoveryv2.ScopeNamespace
	}
	verbs := objectVerbs
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating) {
		verbs = terminatingVerbs
	}
	kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: spec.Name, Kind: names.Kind}

	resource := apidiscoveryv2.APIResourceDiscovery{
		Resource:         names.Plural,
		SingularResource: names.Singular,
		Scope:            scope,
		ResponseKind:     (*metav1.GroupVersionKind)(&kind),
		Verbs:            verbs,
		ShortNames:       names.ShortNames,
		Categories:       names.Categories,
	}
	v.resources = append(v.resources, metav1.APIResource{
		Name:               names.Plural,
		SingularName:       names.Singular,
		Namespaced:         namespaced,
		Kind:               names.Kind,
		Verbs:              verbs,
		ShortNames:         names.ShortNames,
		Categories:         names.Categories,
		StorageVersionHash: storageVersionHash(crd),
	})
	subresource := func(name string, kind schema.GroupVersionKind, legacy metav1.APIResource) {
		resource.Subresources = append(resource.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource:  name,
			ResponseKind: (*metav1.GroupVersionKind)(&kind),
			Verbs:        subresourceVerbs,
		})
		legacy.Name = names.Plural + "/" + name
		legacy.Namespaced = namespaced
		legacy.Kind = kind.Kind
		legacy.Verbs = subresourceVerbs
		v.resources = append(v.resources, legacy)
	}
	if s := spec.Subresources; s != nil && s.Status != nil {
		subresource("status", kind, metav1.APIResource{})
	}
	if s := spec.Subresources; s != nil && s.Scale != nil {
		scale := autoscalingv1.SchemeGroupVersion.WithKind("Scale")
		subresource("scale", scale, metav1.APIResource{Group: scale.Group, Version: scale.Version})
	}
	v.aggregated = append(v.aggregated, resource)
}

// storageVersionHash returns a hash that changes with the storage version. It is empty if
// the storage version is not served.
func storageVersionHash(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if v.Served && v.Storage {
			return discovery.StorageVersionHash(crd.Spec.Group, v.Name, crd.Spec.Names.Kind)
		}
	}
	return ""
}

package customresource

import (
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/scale/scheme/autoscalingv1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// serving serves all versions of a CRD. It is safe for concurrent use.
type serving struct {
	config *Config
	crd    *apiextensionsv1.CustomResourceDefinition
	// storageVersion is the version in which objects are written to etcd.
	storageVersion string

	schemas *schemas
	// converter copies objects, unsafeConverter converts them in place.
	converter, unsafeConverter runtime.ObjectConvertor
	typeConverter              lazyTypeConverter
	// replicasPaths are the paths of the replicas of the scale subresource, by version.
	replicasPaths managedfields.ResourcePathMappings
	// statusResets are the fields that a write to status does not change, by version:
	// managed fields may have any version.
	statusResets map[fieldpath.APIVersion]*fieldpath.Set
	equivalents  runtime.EquivalentResourceMapper

	// mu guards versions, destroyed and the building of a version.
	mu        sync.Mutex
	versions  map[string]*version
	destroyed bool
}

// newServing makes the parts that all versions share. An error means that the CRD cannot be
// served; it is not an error of the client.
func newServing(config *Config, converters *conversion.CRConverterFactory, crd *apiextensionsv1.CustomResourceDefinition) (*serving, error) {
	names := crd.Status.AcceptedNames
	for field, name := range map[string]string{
		"plural": names.Plural, "singular": names.Singular, "kind": names.Kind, "listKind": names.ListKind,
	} {
		if name == "" {
			return nil, fmt.Errorf("status.acceptedNames.%s is empty", field)
		}
	}
	storageVersion, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, fmt.Errorf("find the storage version: %w", err)
	}
	s := &serving{
		config:         config,
		crd:            crd,
		storageVersion: storageVersion,
		schemas:        newSchemas(crd),
		typeConverter:  newLazyTypeConverter(crd),
		replicasPaths:  replicasPaths(crd),
		equivalents:    equivalentResources(crd),
		versions:       map[string]*version{},
	}
	if s.converter, s.unsafeConverter, err = converters.NewConverter(crd); err != nil {
		return nil, fmt.Errorf("make the converter: %w", err)
	}
	if s.statusResets, err = s.collectStatusResets(); err != nil {
		return nil, err
	}
	return s, nil
}

// version returns the named version, which it builds at first use.
func (s *serving) version(name string) (*version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.versions[name]; v != nil {
		return v, nil
	}
	if s.destroyed {
		return nil, errRetired
	}
	definition := versionOf(s.crd, name)
	if definition == nil {
		return nil, fmt.Errorf("version %s is not defined", name)
	}
	v, err := s.buildVersion(definition)
	if err != nil {
		return nil, fmt.Errorf("version %s: %w", name, err)
	}
	s.versions[name] = v
	return v, nil
}

// destroy stops the storage of all versions.
func (s *serving) destroy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.destroyed = true
	s.schemas.stop()
	s.typeConverter.converter.stop()
	for _, v := range s.versions {
		v.reads.destroy()
		v.writes.stop()
	}
}

func (s *serving) gvk(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: s.crd.Spec.Group, Version: version, Kind: s.crd.Status.AcceptedNames.Kind}
}

func (s *serving) clusterScoped() bool {
	return s.crd.Spec.Scope == apiextensionsv1.ClusterScoped
}

// equivalentResources maps each version of the resource to the others, for webhooks and
// policies with matchPolicy Equivalent.
func equivalentResources(crd *apiextensionsv1.CustomResourceDefinition) runtime.EquivalentResourceMapper {
	registry := runtime.NewEquivalentResourceRegistry()
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
		resource := gv.WithResource(crd.Status.AcceptedNames.Plural)
		kind := gv.WithKind(crd.Status.AcceptedNames.Kind)
		registry.RegisterKindFor(resource, "", kind)
		if hasStatus(&v) {
			registry.RegisterKindFor(resource, "status", kind)
		}
		if hasScale(&v) {
			registry.RegisterKindFor(resource, "scale", autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
		}
	}
	return registry
}

func hasStatus(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Status != nil
}

func hasScale(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Subresources != nil && v.Subresources.Scale != nil
}

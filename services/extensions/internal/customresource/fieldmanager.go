package customresource

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/spec3"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"triune.dev/services/extensions/internal/compactcrd"
)

// lazyTypeConverter makes the type converter of a CRD at the first write. It is made of the
// CRD's OpenAPI documents, which is the most expensive part of serving a CRD. Values of
// different converters cannot be compared. A request never sees two, since it is shorter
// than the idle timeout.
type lazyTypeConverter struct {
	converter *expiring[managedfields.TypeConverter]
}

func newLazyTypeConverter(crd *apiextensionsv1.CustomResourceDefinition) lazyTypeConverter {
	return lazyTypeConverter{newExpiring(func() (*managedfields.TypeConverter, error) {
		converter, err := newTypeConverter(crd)
		if err != nil {
			// As upstream: if the schema cannot be expressed as types, managed fields
			// use types deduced from the objects.
			klog.ErrorS(err, "deducing the types of a custom resource from its objects", "crd", crd.Name)
			converter = managedfields.NewDeducedTypeConverter()
		}
		return &converter, nil
	})}
}

func (c lazyTypeConverter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	converter, err := c.converter.get()
	if err != nil {
		return nil, err
	}
	return (*converter).ObjectToTyped(obj, opts...)
}

func (c lazyTypeConverter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	converter, err := c.converter.get()
	if err != nil {
		return nil, err
	}
	return (*converter).TypedToObject(value)
}

// newTypeConverter returns a converter for all versions of the CRD, and for Scale if a
// version has that subresource.
func newTypeConverter(crd *apiextensionsv1.CustomResourceDefinition) (managedfields.TypeConverter, error) {
	crd, err := compactcrd.Expand(crd)
	if err != nil {
		return nil, err
	}
	var specs []*spec3.OpenAPI
	for _, v := range crd.Spec.Versions {
		spec, err := builder.BuildOpenAPIV3(crd, v.Name, builder.Options{})
		if err != nil {
			return nil, fmt.Errorf("build the OpenAPI of version %s: %w", v.Name, err)
		}
		specs = append(specs, spec)
	}
	merged, err := builder.MergeSpecsV3(specs...)
	if err != nil {
		return nil, fmt.Errorf("merge the OpenAPI of all versions: %w", err)
	}
	return managedfields.NewTypeConverter(merged.Components.Schemas, crd.Spec.PreserveUnknownFields)
}

// replicasPaths maps each version to the path of the replicas of its scale, nil without
// one. Writes of a scale move managed fields between the scale and the object.
func replicasPaths(crd *apiextensionsv1.CustomResourceDefinition) managedfields.ResourcePathMappings {
	paths := managedfields.ResourcePathMappings{}
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String()
		paths[gv] = nil
		if !hasScale(&v) {
			continue
		}
		var path fieldpath.Path
		for name := range strings.SplitSeq(strings.TrimPrefix(v.Subresources.Scale.SpecReplicasPath, "."), ".") {
			path = append(path, fieldpath.PathElement{FieldName: &name})
		}
		paths[gv] = path
	}
	return paths
}

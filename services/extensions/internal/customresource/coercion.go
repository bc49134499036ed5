package customresource

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	schemaobjectmeta "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	structuralpruning "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// coercer does to unstructured objects what decoding into a Go struct does to built-in
// ones: it drops unknown fields and nulls that are not allowed, and makes metadata
// well-formed.
type coercer struct {
	schemas *schemas
	// fromStorage is set for objects read from etcd. They may be older than the
	// validation of metadata, so malformed fields are dropped instead of refused, and a
	// missing generation becomes 1.
	fromStorage bool
	// reportUnknown makes apply return the paths of dropped fields.
	reportUnknown bool
}

// apply coerces u in place and returns the paths of dropped fields if reportUnknown is set.
// It keeps metadata, kind and apiVersion whatever the schema says.
func (c coercer) apply(u *unstructured.Unstructured) (unknown []string, err error) {
	kind, hasKind, err := unstructured.NestedString(u.Object, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasAPIVersion, err := unstructured.NestedString(u.Object, "apiVersion")
	if err != nil {
		return nil, err
	}
	restore, unknown, err := c.metadata(u)
	if err != nil {
		return nil, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}

	if c.schemas.describes(schema.GroupKind{Group: gv.Group, Kind: kind}) {
		structural, err := c.schemas.forVersion(gv.Version)
		if err != nil {
			return nil, err
		}
		dropped, err := c.applySchema(u, structural)
		if err != nil {
			return nil, err
		}
		unknown = append(unknown, dropped...)
	}

	if hasKind {
		u.SetKind(kind)
	}
	if hasAPIVersion {
		u.SetAPIVersion(apiVersion)
	}
	return unknown, restore()
}

// metadata returns a function that sets the metadata of u, made well-formed, and the paths
// of dropped fields if reportUnknown is set.
func (c coercer) metadata(u *unstructured.Unstructured) (restore func() error, unknown []string, err error) {
	if metadata, ok := u.Object["metadata"].(map[string]any); ok && wellFormed(metadata) && (!c.fromStorage || metadata["generation"] != nil) {
		return func() error { u.Object["metadata"] = metadata; return nil }, nil, nil
	}
	meta, hasMeta, unknown, err := schemaobjectmeta.GetObjectMetaWithOptions(u.Object, schemaobjectmeta.ObjectMetaOptions{
		DropMalformedFields:     c.fromStorage,
		ReturnUnknownFieldPaths: c.reportUnknown,
	})
	if err != nil || !hasMeta {
		return func() error { return nil }, unknown, err
	}
	if c.fromStorage && meta.Generation == 0 {
		meta.Generation = 1
	}
	return func() error { return schemaobjectmeta.SetObjectMeta(u.Object, meta) }, unknown, nil
}

// applySchema prunes u and makes the metadata of embedded resources well-formed.
func (c coercer) applySchema(u *unstructured.Unstructured, s *structuralschema.Structural) (unknown []string, err error) {
	if !c.schemas.preserveUnknownFields {
		unknown = structuralpruning.PruneWithOptions(u.Object, s, true, structuralschema.UnknownFieldPathOptions{
			TrackUnknownFieldPaths: c.reportUnknown,
		})
		structuraldefaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s)
	}
	fieldErr, embedded := schemaobjectmeta.CoerceWithOptions(nil, u.Object, s, false, schemaobjectmeta.CoerceOptions{
		DropInvalidFields:       c.fromStorage,
		ReturnUnknownFieldPaths: c.reportUnknown,
	})
	if fieldErr != nil {
		return nil, fieldErr
	}
	return append(unknown, embedded...), nil
}

// coercingDecoder coerces the objects that another decoder decodes.
type coercingDecoder struct {
	runtime.Decoder
	coercer coercer
}

// Decode returns the object together with a strict decoding error if unknown fields are
// reported. As for built-in kinds, duplicate fields, which the inner decoder finds, come
// first.
func (d coercingDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := d.Decoder.Decode(data, defaults, into)
	var strict []error
	if err != nil {
		strictErr, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil {
			return nil, gvk, err
		}
		strict = strictErr.Errors()
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		unknown, err := d.coercer.apply(u)
		if err != nil {
			return nil, gvk, err
		}
		for _, path := range unknown {
			strict = append(strict, fmt.Errorf(`unknown field "%s"`, path))
		}
	}
	if d.coercer.reportUnknown && len(strict) > 0 {
		return obj, gvk, runtime.NewStrictDecodingError(strict)
	}
	return obj, gvk, nil
}

// coercingConvertor coerces the objects that another convertor converts: a conversion
// webhook may return fields that are unknown in the target version.
type coercingConvertor struct {
	runtime.ObjectConvertor
	coercer coercer
}

// Convert does not coerce if the version stays the same, since decoding has coerced in.
func (c coercingConvertor) Convert(in, out, context any) error {
	from, ok := in.(*unstructured.Unstructured)
	to, same := out.(*unstructured.Unstructured)
	same = ok && same && from.GroupVersionKind().GroupVersion() == to.GroupVersionKind().GroupVersion()
	if err := c.ObjectConvertor.Convert(in, out, context); err != nil {
		return err
	}
	if same {
		return nil
	}
	return c.coerce(out)
}

func (c coercingConvertor) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	out, err := c.ObjectConvertor.ConvertToVersion(in, gv)
	if err != nil {
		return nil, err
	}
	return out, c.coerce(out)
}

func (c coercingConvertor) coerce(obj any) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	_, err := c.coercer.apply(u)
	return err
}

// defaulter applies the defaults of the schemas to objects of their kind and the embedded
// defaulter to others.
type defaulter struct {
	runtime.ObjectDefaulter
	schemas *schemas
}

// Default changes in; it must not be shared.
func (d defaulter) Default(in runtime.Object) {
	u, ok := in.(runtime.Unstructured)
	if !ok {
		d.ObjectDefaulter.Default(in)
		return
	}
	gvk := u.GetObjectKind().GroupVersionKind()
	if !d.schemas.describes(gvk.GroupKind()) {
		d.ObjectDefaulter.Default(in)
		return
	}
	// If the schemas cannot be built, coercing the object fails as well.
	if structural, err := d.schemas.forVersion(gvk.Version); err == nil {
		structuraldefaulting.Default(u.UnstructuredContent(), structural)
	}
}

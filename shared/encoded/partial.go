package encoded

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/shared/bytecache"
)

// partial is the metadata of an object as clients ask for it with
// as=PartialObjectMetadata.
func (v *Version) partial(e *bytecache.Entry, revision int64, gv schema.GroupVersion) (runtime.Object, error) {
	obj, err := v.decodeForMetadata(e, revision)
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("metadata of %T: %w", obj, err)
	}
	p := meta.AsPartialObjectMetadata(m)
	p.SetGroupVersionKind(gv.WithKind("PartialObjectMetadata"))
	return p, nil
}

// annotatedByConversion are the built-in kinds of which some version has annotations for
// what it has no field for. They are in the JSON of that version, and not in the metadata
// alone.
var annotatedByConversion = map[string]bool{"DaemonSet": true, "Deployment": true, "HorizontalPodAutoscaler": true}

// partialOfJSON is the JSON of the metadata of an object of a built-in kind, cut out of the
// object's own where that is kept: both are encoded from the same type.
func (v *Version) partialOfJSON(e *bytecache.Entry, gv schema.GroupVersion) (rendered []byte, ok bool) {
	if v.typeMeta == nil || annotatedByConversion[v.config.Kind.Kind] {
		return nil, false
	}
	whole, _ := e.CachedForm(v.kinds[JSON])
	rest, ok := bytes.CutPrefix(whole, v.typeMeta)
	if !ok {
		return nil, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(`"metadata":`)); !ok {
		return nil, false
	}
	end, ok := skipValue(rest, 0)
	if !ok {
		return nil, false
	}
	rendered = fmt.Appendf(make([]byte, 0, end+128), `{"kind":"PartialObjectMetadata","apiVersion":%q,"metadata":`, gv.String())
	return append(append(rendered, rest[:end]...), "}\n"...), true
}

// KeptMetadata is the PartialObjectMetadata of an entry as JSON, without a newline at its
// end, where it takes next to nothing to know it; ok is false elsewhere.
func (v *Version) KeptMetadata(e *bytecache.Entry, gv schema.GroupVersion) (metadata []byte, ok bool) {
	metadata, ok = v.partialOfJSON(e, gv)
	return bytes.TrimSuffix(metadata, []byte("\n")), ok
}

// decodeForMetadata is Decode for somebody who looks at nothing but the metadata. It
// decodes nothing else where that makes no difference.
func (v *Version) decodeForMetadata(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	if alone, ok := v.aloneForMetadata(e); ok {
		if obj, err := v.decode(e, alone, revision); err == nil {
			return obj, nil
		}
	}
	return v.Decode(e, revision)
}

// aloneForMetadata returns a stored object with nothing but its metadata. Of a custom
// resource these may depend on the rest, unless it is sent as it is stored.
func (v *Version) aloneForMetadata(e *bytecache.Entry) (alone []byte, ok bool) {
	if v.typeMeta == nil {
		if _, ok := v.identical(e); !ok {
			return nil, false
		}
		return jsonMetadataAlone(e.Data())
	}
	alone, labelled, ok := metadataAlone(e.Data())
	return alone, ok && (labelled || !labelledByTemplate[v.config.Kind.Kind])
}

// partialList is the empty list of the metadata of objects.
func partialList(gv schema.GroupVersion, m metav1.ListMeta) runtime.Object {
	m = metav1.ListMeta{ResourceVersion: m.ResourceVersion, Continue: m.Continue, RemainingItemCount: m.RemainingItemCount}
	if gv == metav1beta1.SchemeGroupVersion {
		return &metav1beta1.PartialObjectMetadataList{ListMeta: m}
	}
	return &metav1.PartialObjectMetadataList{ListMeta: m}
}

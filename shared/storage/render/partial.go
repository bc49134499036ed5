package render

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/shared/storage/bytecache"
)

// partial returns the PartialObjectMetadata of an entry.
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

// annotatesOnConversion are the built-in kinds with a version that uses annotations for
// missing fields. The JSON of that version has these annotations, its PartialObjectMetadata
// does not.
var annotatesOnConversion = map[string]bool{"DaemonSet": true, "Deployment": true, "HorizontalPodAutoscaler": true}

// partialOfJSON cuts the PartialObjectMetadata of an object of a built-in kind from the
// object's JSON, if that is cached: both are encoded from the same type.
func (v *Version) partialOfJSON(e *bytecache.Entry, gv schema.GroupVersion) (rendered []byte, ok bool) {
	if v.typeMeta == nil || annotatesOnConversion[v.config.Kind.Kind] {
		return nil, false
	}
	whole, _ := e.CachedForm(v.formIDs[JSON])
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

// CachedMetadata returns the PartialObjectMetadata of an entry as JSON, without a final
// newline, if the JSON of the object is cached.
func (v *Version) CachedMetadata(e *bytecache.Entry, gv schema.GroupVersion) (metadata []byte, ok bool) {
	metadata, ok = v.partialOfJSON(e, gv)
	return bytes.TrimSuffix(metadata, []byte("\n")), ok
}

// decodeForMetadata is Decode for a caller that needs only the metadata. It decodes nothing
// else if the result is the same.
func (v *Version) decodeForMetadata(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	if alone, ok := v.metadataOnly(e); ok {
		if obj, err := v.decode(e, alone, revision); err == nil {
			return obj, nil
		}
	}
	return v.Decode(e, revision)
}

// metadataOnly returns a stored object reduced to its metadata. The metadata of a custom
// resource may depend on the rest, unless the object is sent as it is stored.
func (v *Version) metadataOnly(e *bytecache.Entry) (alone []byte, ok bool) {
	if v.typeMeta == nil {
		if _, ok := v.proveIdentical(e); !ok {
			return nil, false
		}
		return jsonMetadataOnly(e.Data())
	}
	alone, labeled, ok := protobufMetadataOnly(e.Data())
	return alone, ok && (labeled || !labeledByTemplate[v.config.Kind.Kind])
}

// partialList returns an empty PartialObjectMetadataList.
func partialList(gv schema.GroupVersion, m metav1.ListMeta) runtime.Object {
	m = metav1.ListMeta{ResourceVersion: m.ResourceVersion, Continue: m.Continue, RemainingItemCount: m.RemainingItemCount}
	if gv == metav1beta1.SchemeGroupVersion {
		return &metav1beta1.PartialObjectMetadataList{ListMeta: m}
	}
	return &metav1.PartialObjectMetadataList{ListMeta: m}
}

package encoded

import (
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

// decodeForMetadata is Decode for somebody who looks at nothing but the metadata. Of
// built-in kinds it decodes nothing else where that makes no difference.
func (v *Version) decodeForMetadata(e *bytecache.Entry, revision int64) (runtime.Object, error) {
	if v.typeMeta != nil {
		alone, labelled, ok := metadataAlone(e.Data())
		if ok && (labelled || !labelledByTemplate[v.config.Kind.Kind]) {
			if obj, err := v.decode(e, alone, revision); err == nil {
				return obj, nil
			}
		}
	}
	return v.Decode(e, revision)
}

// partialList is the empty list of the metadata of objects.
func partialList(gv schema.GroupVersion, m metav1.ListMeta) runtime.Object {
	m = metav1.ListMeta{ResourceVersion: m.ResourceVersion, Continue: m.Continue, RemainingItemCount: m.RemainingItemCount}
	if gv == metav1beta1.SchemeGroupVersion {
		return &metav1beta1.PartialObjectMetadataList{ListMeta: m}
	}
	return &metav1.PartialObjectMetadataList{ListMeta: m}
}

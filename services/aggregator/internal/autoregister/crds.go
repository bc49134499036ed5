package autoregister

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// WatchCRDs registers the group-versions that the CRDs of an informer serve, whether established or
// not, as kube-apiserver does. It calls changed, if set, after every change; changed must not
// block. WatchCRDs must be called before Run; the caller must run the returned function
// concurrently with Run.
func (r *Registrar) WatchCRDs(informer cache.SharedIndexInformer, changed func()) (func(context.Context), error) {
	see := func(obj any, gone bool) {
		r.update(obj, gone)
		if changed != nil {
			changed()
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { see(obj, false) },
		UpdateFunc: func(_, obj any) { see(obj, false) },
		DeleteFunc: func(obj any) { see(obj, true) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch customresourcedefinitions: %w", err)
	}
	return func(ctx context.Context) {
		if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return
		}
		r.mu.Lock()
		r.crdsSynced = true
		r.mu.Unlock()
		r.enqueueAll()
	}, nil
}

// update updates the group-versions of a CRD. The previous ones are stored here, because the object
// of a deletion event may differ from the last one seen.
func (r *Registrar) update(obj any, gone bool) {
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	var now []schema.GroupVersion
	if !gone {
		now = servedVersions(obj)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.crdVersions[name]
	r.crdVersions[name] = now
	if gone {
		delete(r.crdVersions, name)
	}
	r.countLocked(now, +1)
	r.countLocked(before, -1)
}

// countLocked adds to the number of CRDs that serve the group-versions.
func (r *Registrar) countLocked(gvs []schema.GroupVersion, by int) {
	for _, gv := range gvs {
		name := apiServiceName(gv)
		r.crdCounts[name] += by
		if r.crdCounts[name] == 0 {
			delete(r.crdCounts, name)
		}
		r.queue.Add(name)
	}
}

// servedVersions returns the group-versions that a CRD serves.
func servedVersions(obj any) []schema.GroupVersion {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil
	}
	var gvs []schema.GroupVersion
	for _, version := range crd.Spec.Versions {
		if version.Served {
			gvs = append(gvs, schema.GroupVersion{Group: crd.Spec.Group, Version: version.Name})
		}
	}
	return gvs
}

// StripCRD is a [cache.TransformFunc] for an informer of CRDs that only a Registrar uses. It drops
// the schemas, which are most of a CRD.
func StripCRD(obj any) (any, error) {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return obj, nil
	}
	crd.ManagedFields, crd.Annotations = nil, nil
	crd.Spec.Conversion = nil
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		*version = apiextensionsv1.CustomResourceDefinitionVersion{Name: version.Name, Served: version.Served, Storage: version.Storage}
	}
	return crd, nil
}

package autoregister

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// FollowCRDs registers the group-versions of an informer's CRDs: those that a CRD
// says are served, established or not, as kube-apiserver does. changed, if set,
// is called after every change; it must not block. FollowCRDs must be called
// before Run, and the returned function run beside it.
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

// see takes over what a CRD serves now. What it served before is remembered here,
// for the object of a deletion need not be the one that was seen last.
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

// countLocked adds to the number of CRDs that serve each of gvs.
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

// versionsOf returns the group-versions a CRD serves.
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

// Outline is a cache.TransformFunc for an informer of CRDs that nobody else reads:
// it keeps what registration needs and drops the schemas, which are most of a
// CRD.
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

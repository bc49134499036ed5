package crd

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/tools/cache"
)

// Observer handles changes of CRDs. It is called from one goroutine at a time. It must not
// change the CRDs and must not block, since that delays the next CRD.
type Observer interface {
	// Put is called for a new or changed CRD.
	Put(crd *apiextensionsv1.CustomResourceDefinition)
	// Remove is called after a CRD has been deleted. If the informer missed the deletion,
	// crd may be older than that of the last Put.
	Remove(crd *apiextensionsv1.CustomResourceDefinition)
}

// Observe calls the observers, in order, for each change that informer sees. The
// registration is synced after they have handled all CRDs of the informer's first list.
func Observe(informer cache.SharedInformer, observers ...Observer) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := informer.AddEventHandler(events(observers))
	if err != nil {
		return nil, fmt.Errorf("observe custom resource definitions: %w", err)
	}
	return registration, nil
}

// events implements cache.ResourceEventHandler.
type events []Observer

func (e events) OnAdd(obj any, _ bool) {
	if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		e.put(crd)
	}
}

func (e events) OnUpdate(old, obj any) {
	before, ok := old.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	after, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	switch {
	case before.ResourceVersion == after.ResourceVersion:
		return // a resync
	case before.UID != after.UID:
		// Deleted and created again while the informer was disconnected.
		e.remove(before)
	}
	e.put(after)
}

func (e events) OnDelete(obj any) {
	if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = missed.Obj
	}
	if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		e.remove(crd)
	}
}

func (e events) put(crd *apiextensionsv1.CustomResourceDefinition) {
	for _, observer := range e {
		observer.Put(crd)
	}
}

func (e events) remove(crd *apiextensionsv1.CustomResourceDefinition) {
	for _, observer := range e {
		observer.Remove(crd)
	}
}

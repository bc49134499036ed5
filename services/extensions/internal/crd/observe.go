package crd

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/tools/cache"
)

// Observer is told of every CRD there is. It is called from one goroutine at a
// time, must not change what it is given, and must not block: the next CRD waits
// for it.
type Observer interface {
	// Put tells that crd is new or has changed.
	Put(crd *apiextensionsv1.CustomResourceDefinition)
	// Remove tells that crd is gone. The CRD may be an older state than the last
	// one that was put, if the deletion itself was missed.
	Remove(crd *apiextensionsv1.CustomResourceDefinition)
}

// Observe tells observers of the CRDs that informer sees, in the order given, for
// as long as informer runs. The registration is synced when they have been told
// of everything that was there at first.
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
		// Deleted and created again while the informer was not looking.
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

package authz

import (
	"sync/atomic"

	"k8s.io/client-go/tools/cache"
)

// generation counts the changes of informers' stores. A cache that remembers the generation
// at which it read the stores is valid while the generation is the same. Add informers before
// the first use; from then on it is safe for concurrent use.
type generation struct {
	// changes counts the calls of the event handlers. A call follows the change of the
	// informer's store.
	changes atomic.Uint64
	// handlersSynced report whether the handlers were called for all initial objects. Until
	// then nothing may be cached, even if the informers themselves have synced.
	handlersSynced []cache.InformerSynced
	synced         atomic.Bool // all handlersSynced have returned true
}

// follow counts the changes that informers report. The generation never syncs if one of them
// has stopped.
func (g *generation) follow(informers ...cache.SharedIndexInformer) {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { g.changes.Add(1) },
		UpdateFunc: func(_, _ any) { g.changes.Add(1) },
		DeleteFunc: func(any) { g.changes.Add(1) },
	}
	for _, informer := range informers {
		synced := func() bool { return false }
		if registration, err := informer.AddEventHandler(handler); err == nil { // otherwise the informer has stopped
			synced = registration.HasSynced
		}
		g.handlersSynced = append(g.handlersSynced, synced)
	}
}

func (g *generation) current() uint64 { return g.changes.Load() }

func (g *generation) hasSynced() bool {
	if g.synced.Load() {
		return true
	}
	for _, synced := range g.handlersSynced {
		if !synced() {
			return false
		}
	}
	g.synced.Store(true)
	return true
}

package authz

import (
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	rbacgroup "k8s.io/client-go/informers/rbac"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
)

// WithBindings returns a factory like the given one whose lister of ClusterRoleBindings
// collects them anew only when one of them has changed. RBAC asks for all of them with
// every request: sixty in an empty cluster, thousands in some. Nobody may change the slice
// that it lists.
//
// What it lists is older than what the informer holds for as long as it takes the informer
// to call its handlers.
func WithBindings(factory informers.SharedInformerFactory) informers.SharedInformerFactory {
	return &withBindings{SharedInformerFactory: factory}
}

type withBindings struct {
	informers.SharedInformerFactory
	once sync.Once
	kept *bindings
}

// Rbac implements informers.SharedInformerFactory.
func (f *withBindings) Rbac() rbacgroup.Interface {
	return bindingsGroup{f.SharedInformerFactory.Rbac(), f}
}

type bindingsGroup struct {
	rbacgroup.Interface
	factory *withBindings
}

func (g bindingsGroup) V1() rbacinformers.Interface {
	return bindingsVersion{g.Interface.V1(), g.factory}
}

type bindingsVersion struct {
	rbacinformers.Interface
	factory *withBindings
}

func (v bindingsVersion) ClusterRoleBindings() rbacinformers.ClusterRoleBindingInformer {
	return bindingsInformer{v.Interface.ClusterRoleBindings(), v.factory}
}

type bindingsInformer struct {
	rbacinformers.ClusterRoleBindingInformer
	factory *withBindings
}

func (i bindingsInformer) Lister() rbaclisters.ClusterRoleBindingLister {
	i.factory.once.Do(func() {
		kept := &bindings{ClusterRoleBindingLister: i.ClusterRoleBindingInformer.Lister()}
		changed := func() { kept.changes.Add(1) }
		registration, err := i.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(_, _ any) { changed() },
			DeleteFunc: func(any) { changed() },
		})
		if err == nil { // else it has been stopped
			kept.told = registration.HasSynced
			i.factory.kept = kept
		}
	})
	if i.factory.kept == nil {
		return i.ClusterRoleBindingInformer.Lister()
	}
	return i.factory.kept
}

// bindings are the ClusterRoleBindings of an informer.
type bindings struct {
	rbaclisters.ClusterRoleBindingLister
	// changes counts the calls of the informer's handlers, which come after what it holds
	// has changed.
	changes atomic.Uint64
	// told: they have been told of all that there was at first. Until then nothing is kept,
	// for others may know by then that the informer has read all.
	told   cache.InformerSynced
	follow atomic.Bool // told was true
	known  atomic.Pointer[listed]
}

func (b *bindings) follows() bool {
	if b.follow.Load() {
		return true
	}
	told := b.told()
	b.follow.Store(told)
	return told
}

// listed are all that there were, collected when so many changes were known.
type listed struct {
	changes uint64
	all     []*rbacv1.ClusterRoleBinding
}

// List implements rbaclisters.ClusterRoleBindingLister.
func (b *bindings) List(selector labels.Selector) ([]*rbacv1.ClusterRoleBinding, error) {
	if !selector.Empty() || !b.follows() {
		return b.ClusterRoleBindingLister.List(selector)
	}
	changes := b.changes.Load()
	if known := b.known.Load(); known != nil && known.changes == changes {
		return known.all, nil
	}
	// What changes from here on may be in the list, and calls the handlers later.
	all, err := b.ClusterRoleBindingLister.List(selector)
	if err == nil {
		b.known.Store(&listed{changes, all[:len(all):len(all)]})
	}
	return all, err
}

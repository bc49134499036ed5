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
)

// CacheClusterRoleBindings returns a factory whose lister of ClusterRoleBindings caches the
// list of all of them until one changes. The RBAC authorizer lists them for every request:
// sixty in an empty cluster, thousands in some. Callers must not modify the returned slice.
//
// The cached list lags behind the informer's store until the informer has called its
// handlers. If the informer has stopped, nothing is cached.
func CacheClusterRoleBindings(factory informers.SharedInformerFactory) informers.SharedInformerFactory {
	return &bindingFactory{SharedInformerFactory: factory}
}

type bindingFactory struct {
	informers.SharedInformerFactory
	once   sync.Once
	lister *bindingLister
}

// Rbac implements informers.SharedInformerFactory.
func (f *bindingFactory) Rbac() rbacgroup.Interface {
	return bindingGroup{f.SharedInformerFactory.Rbac(), f}
}

type bindingGroup struct {
	rbacgroup.Interface
	factory *bindingFactory
}

func (g bindingGroup) V1() rbacinformers.Interface {
	return bindingVersion{g.Interface.V1(), g.factory}
}

type bindingVersion struct {
	rbacinformers.Interface
	factory *bindingFactory
}

func (v bindingVersion) ClusterRoleBindings() rbacinformers.ClusterRoleBindingInformer {
	return bindingInformer{v.Interface.ClusterRoleBindings(), v.factory}
}

type bindingInformer struct {
	rbacinformers.ClusterRoleBindingInformer
	factory *bindingFactory
}

func (i bindingInformer) Lister() rbaclisters.ClusterRoleBindingLister {
	i.factory.once.Do(func() {
		lister := &bindingLister{ClusterRoleBindingLister: i.ClusterRoleBindingInformer.Lister()}
		lister.generation.follow(i.Informer())
		i.factory.lister = lister
	})
	return i.factory.lister
}

// bindingLister lists the ClusterRoleBindings of an informer.
type bindingLister struct {
	rbaclisters.ClusterRoleBindingLister
	generation generation
	cached     atomic.Pointer[bindingList]
}

// bindingList holds all ClusterRoleBindings, listed at a generation.
type bindingList struct {
	generation uint64
	all        []*rbacv1.ClusterRoleBinding
}

// List implements rbaclisters.ClusterRoleBindingLister.
func (l *bindingLister) List(selector labels.Selector) ([]*rbacv1.ClusterRoleBinding, error) {
	if !selector.Empty() || !l.generation.hasSynced() {
		return l.ClusterRoleBindingLister.List(selector)
	}
	generation := l.generation.current()
	if cached := l.cached.Load(); cached != nil && cached.generation == generation {
		return cached.all, nil
	}
	// The list may contain later changes, whose handler call then invalidates it.
	all, err := l.ClusterRoleBindingLister.List(selector)
	if err == nil {
		l.cached.Store(&bindingList{generation, all[:len(all):len(all)]})
	}
	return all, err
}

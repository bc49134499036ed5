package authz

import (
	"fmt"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
)

func newBinding(name string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
}

// listNames lists the sorted names of bindings.
func listNames(t *testing.T, lister rbaclisters.ClusterRoleBindingLister, selector labels.Selector) []string {
	t.Helper()
	all, err := lister.List(selector)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, binding := range all {
		names = append(names, binding.Name)
	}
	slices.Sort(names)
	return names
}

// TestCachedBindings: the cached list follows changes.
func TestCachedBindings(t *testing.T) {
	client := fake.NewClientset(newBinding("a"), newBinding("b"))
	factory := CacheClusterRoleBindings(informers.NewSharedInformerFactory(client, 0))
	informer := factory.Rbac().V1().ClusterRoleBindings()
	lister := informer.Lister()
	if again := factory.Rbac().V1().ClusterRoleBindings().Lister(); again != lister {
		t.Error("the second call returns another lister")
	}
	if got := listNames(t, lister, labels.Everything()); len(got) > 0 {
		t.Errorf("listed %v before anything was read", got)
	}
	run(t, factory)
	eventually := func(want ...string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			got := listNames(t, lister, labels.Everything())
			if slices.Equal(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("listed %v, want %v", got, want)
			}
		}
	}
	if got := listNames(t, lister, labels.Everything()); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("listed %v, want a and b", got)
	}
	waitForHandler(lister)
	eventually("a", "b")
	if got := listNames(t, lister, labels.SelectorFromSet(labels.Set{"name": "b"})); !slices.Equal(got, []string{"b"}) {
		t.Errorf("selected %v, want b", got)
	}
	api := client.RbacV1().ClusterRoleBindings()
	if err := api.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("b")
	var want []string
	for i := range 50 {
		name := fmt.Sprintf("c-%02d", i)
		if _, err := api.Create(t.Context(), newBinding(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
		listNames(t, lister, labels.Everything()) // may cache an intermediate list
	}
	eventually(append([]string{"b"}, want...)...)
	changed := newBinding("b")
	changed.Subjects = []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "alice"}}
	if _, err := api.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		all, err := lister.List(labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(all, func(b *rbacv1.ClusterRoleBinding) bool { return b.Name == "b" })
		if at >= 0 && len(all[at].Subjects) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the new subject is not listed")
		}
	}
}

// waitForHandler waits until the informer's handler was called for all initial objects.
func waitForHandler(lister rbaclisters.ClusterRoleBindingLister) {
	for !lister.(*bindingLister).generation.hasSynced() {
		time.Sleep(time.Millisecond)
	}
}

// TestCachedBindingsAllocateNothing while none of them changes.
func TestCachedBindingsAllocateNothing(t *testing.T) {
	factory := CacheClusterRoleBindings(informers.NewSharedInformerFactory(fake.NewClientset(newBinding("a"), newBinding("b")), 0))
	lister := factory.Rbac().V1().ClusterRoleBindings().Lister()
	run(t, factory)
	waitForHandler(lister)
	listed := 0
	if allocations := testing.AllocsPerRun(10, func() {
		all, _ := lister.List(labels.Everything())
		listed = len(all)
	}); allocations > 0 || listed != 2 {
		t.Errorf("listing %d unchanged bindings takes %v allocations", listed, allocations)
	}
}

// TestBindingsOfAStoppedInformer: an informer that reports no changes has no cache.
func TestBindingsOfAStoppedInformer(t *testing.T) {
	inner := informers.NewSharedInformerFactory(fake.NewClientset(newBinding("a")), 0)
	inner.Rbac().V1().ClusterRoleBindings().Informer()
	stop := make(chan struct{})
	inner.Start(stop)
	inner.WaitForCacheSync(stop)
	close(stop)
	inner.Shutdown()
	lister := CacheClusterRoleBindings(inner).Rbac().V1().ClusterRoleBindings().Lister()
	if got := listNames(t, lister, labels.Everything()); !slices.Equal(got, []string{"a"}) {
		t.Errorf("listed %v, want a", got)
	}
	if lister.(*bindingLister).cached.Load() != nil {
		t.Error("bindings are cached")
	}
}

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

func bindingNamed(name string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
}

// namesOf lists the names of bindings in their order.
func namesOf(t *testing.T, lister rbaclisters.ClusterRoleBindingLister, selector labels.Selector) []string {
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

// TestBindings: what is listed follows what there is.
func TestBindings(t *testing.T) {
	client := fake.NewClientset(bindingNamed("a"), bindingNamed("b"))
	factory := WithBindings(informers.NewSharedInformerFactory(client, 0))
	informer := factory.Rbac().V1().ClusterRoleBindings()
	lister := informer.Lister()
	if again := factory.Rbac().V1().ClusterRoleBindings().Lister(); again != lister {
		t.Error("another lister at the second call, with a handler of its own")
	}
	if got := namesOf(t, lister, labels.Everything()); len(got) > 0 {
		t.Errorf("listed %v before anything was read", got)
	}
	run(t, factory)
	becomes := func(want ...string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			got := namesOf(t, lister, labels.Everything())
			if slices.Equal(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("listed %v, want %v", got, want)
			}
		}
	}
	if got := namesOf(t, lister, labels.Everything()); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("listed %v, want what the informer has read", got)
	}
	follows(lister)
	becomes("a", "b")
	if got := namesOf(t, lister, labels.SelectorFromSet(labels.Set{"name": "b"})); !slices.Equal(got, []string{"b"}) {
		t.Errorf("selected %v, want b", got)
	}
	api := client.RbacV1().ClusterRoleBindings()
	if err := api.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes("b")
	var want []string
	for i := range 50 {
		name := fmt.Sprintf("c-%02d", i)
		if _, err := api.Create(t.Context(), bindingNamed(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
		namesOf(t, lister, labels.Everything()) // some of the lists are of a moment in between
	}
	becomes(append([]string{"b"}, want...)...)
	changed := bindingNamed("b")
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

// follows waits until the informer's handlers have been told of what there was at first.
func follows(lister rbaclisters.ClusterRoleBindingLister) {
	for !lister.(*bindings).follows() {
		time.Sleep(time.Millisecond)
	}
}

// TestBindingsAllocateNothing while none of them changes.
func TestBindingsAllocateNothing(t *testing.T) {
	factory := WithBindings(informers.NewSharedInformerFactory(fake.NewClientset(bindingNamed("a"), bindingNamed("b")), 0))
	lister := factory.Rbac().V1().ClusterRoleBindings().Lister()
	run(t, factory)
	follows(lister)
	listed := 0
	if allocations := testing.AllocsPerRun(10, func() {
		all, _ := lister.List(labels.Everything())
		listed = len(all)
	}); allocations > 0 || listed != 2 {
		t.Errorf("a list of %d that has not changed takes %v allocations", listed, allocations)
	}
}

// TestBindingsOfAStoppedInformer: there is nobody to tell of changes, so nothing is kept.
func TestBindingsOfAStoppedInformer(t *testing.T) {
	inner := informers.NewSharedInformerFactory(fake.NewClientset(bindingNamed("a")), 0)
	inner.Rbac().V1().ClusterRoleBindings().Informer()
	stop := make(chan struct{})
	inner.Start(stop)
	inner.WaitForCacheSync(stop)
	close(stop)
	inner.Shutdown()
	lister := WithBindings(inner).Rbac().V1().ClusterRoleBindings().Lister()
	if _, kept := lister.(*bindings); kept {
		t.Error("bindings are kept")
	}
	if got := namesOf(t, lister, labels.Everything()); !slices.Equal(got, []string{"a"}) {
		t.Errorf("listed %v, want a", got)
	}
}

package bootstrap

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// writes returns the writes of a client as verb, resource and name, sorted.
func writes(client *fake.Clientset) []string {
	var all []string
	for _, action := range client.Actions() {
		switch a := action.(type) {
		case clienttesting.UpdateAction: // creates are updates to this package
			name := a.GetObject().(metav1.ObjectMetaAccessor).GetObjectMeta().GetName()
			all = append(all, a.GetVerb()+" "+a.GetResource().Resource+" "+name)
		case clienttesting.DeleteAction:
			all = append(all, "delete "+a.GetResource().Resource+" "+a.GetName())
		}
	}
	slices.Sort(all)
	return all
}

// newCluster returns a client of a cluster with the namespaces of the bootstrap roles.
func newCluster() *fake.Clientset {
	return fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespacePublic}},
	)
}

func TestRBACOfANewCluster(t *testing.T) {
	client := newCluster()
	if err := RBAC(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	roles, err := client.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bindings, err := client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(bootstrappolicy.ClusterRoles()) + len(bootstrappolicy.ControllerRoles()); len(roles.Items) != want || want == 0 {
		t.Errorf("%d cluster roles, want %d", len(roles.Items), want)
	}
	if want := len(bootstrappolicy.ClusterRoleBindings()) + len(bootstrappolicy.ControllerRoleBindings()); len(bindings.Items) != want || want == 0 {
		t.Errorf("%d cluster role bindings, want %d", len(bindings.Items), want)
	}
	for _, role := range roles.Items {
		if role.Annotations[rbacv1.AutoUpdateAnnotationKey] != "true" || role.Labels["kubernetes.io/bootstrapping"] != "rbac-defaults" {
			t.Errorf("%s is not marked as bootstrap's: %v %v", role.Name, role.Annotations, role.Labels)
		}
	}
	for namespace, want := range bootstrappolicy.NamespaceRoles() {
		got, err := client.RbacV1().Roles(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(got.Items) != len(want) {
			t.Errorf("%d roles in %s, want %d: %v", len(got.Items), namespace, len(want), err)
		}
	}
	// Another server, or a restart, changes nothing.
	client.ClearActions()
	if err := RBAC(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if got := writes(client); len(got) != 0 {
		t.Errorf("a second run changes %v", got)
	}
}

// TestRBACKeepsAdditions checks that RBAC keeps the additions of administrators and restores
// what they have removed, unless autoupdate is off.
func TestRBACKeepsAdditions(t *testing.T) {
	client := newCluster()
	if err := RBAC(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	roles, bindings := client.RbacV1().ClusterRoles(), client.RbacV1().ClusterRoleBindings()
	own := rbacv1.PolicyRule{APIGroups: []string{"example.com"}, Resources: []string{"things"}, Verbs: []string{"get"}}
	subject := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"}
	change(t, roles.Get, roles.Update, "system:discovery", func(role *rbacv1.ClusterRole) { role.Rules = append(role.Rules, own) })
	change(t, roles.Get, roles.Update, "system:basic-user", func(role *rbacv1.ClusterRole) { role.Rules = nil })
	change(t, roles.Get, roles.Update, "system:kube-scheduler", func(role *rbacv1.ClusterRole) {
		role.Rules = nil
		role.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	})
	change(t, bindings.Get, bindings.Update, "system:discovery", func(binding *rbacv1.ClusterRoleBinding) {
		binding.Subjects = []rbacv1.Subject{subject}
	})
	change(t, bindings.Get, bindings.Update, "system:basic-user", func(binding *rbacv1.ClusterRoleBinding) {
		binding.Subjects = nil
		binding.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	})
	if err := bindings.Delete(t.Context(), "system:kube-scheduler", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	client.ClearActions()
	if err := RBAC(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"create clusterrolebindings system:kube-scheduler",
		"update clusterrolebindings system:discovery",
		"update clusterroles system:basic-user",
	}
	if diff := cmp.Diff(want, writes(client)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	ctx, o := t.Context(), metav1.GetOptions{}
	if role, err := roles.Get(ctx, "system:discovery", o); err != nil || !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "things") }) {
		t.Errorf("an added rule is gone: %v", err)
	}
	if role, err := roles.Get(ctx, "system:basic-user", o); err != nil || len(role.Rules) == 0 {
		t.Errorf("a removed rule is not back: %v", err)
	}
	if role, err := roles.Get(ctx, "system:kube-scheduler", o); err != nil || len(role.Rules) != 0 {
		t.Errorf("a role with autoupdate=false was changed: %v", err)
	}
	if binding, err := bindings.Get(ctx, "system:discovery", o); err != nil || len(binding.Subjects) < 2 || !slices.Contains(binding.Subjects, subject) {
		t.Errorf("subjects %v: %v", binding.Subjects, err)
	}
	if binding, err := bindings.Get(ctx, "system:basic-user", o); err != nil || len(binding.Subjects) != 0 {
		t.Errorf("a binding with autoupdate=false was changed: %v", err)
	}
}

// change reads, changes and writes an object.
func change[T any](t *testing.T, get func(context.Context, string, metav1.GetOptions) (*T, error),
	update func(context.Context, *T, metav1.UpdateOptions) (*T, error), name string, do func(*T)) {
	t.Helper()
	object, err := get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	do(object)
	if _, err := update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestRBACBesideAnotherServer checks that two servers may start at the same time.
func TestRBACBesideAnotherServer(t *testing.T) {
	client := newCluster()
	var refused atomic.Int32
	client.PrependReactor("create", "clusterroles", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object := action.(clienttesting.CreateAction).GetObject()
		if refused.Add(1) > 3 {
			return false, nil, nil
		}
		// The other server creates it first.
		if err := client.Tracker().Add(object); err != nil {
			return true, nil, err
		}
		name := object.(metav1.ObjectMetaAccessor).GetObjectMeta().GetName()
		return true, nil, apierrors.NewAlreadyExists(rbacv1.Resource("clusterroles"), name)
	})
	if err := RBAC(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	roles, err := client.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(bootstrappolicy.ClusterRoles()) + len(bootstrappolicy.ControllerRoles()); len(roles.Items) != want {
		t.Errorf("%d cluster roles, want %d", len(roles.Items), want)
	}
}

// TestRBACTriesAgain checks that RBAC retries until etcd has a leader, and that the error
// has the reason when it gives up.
func TestRBACTriesAgain(t *testing.T) {
	unavailable := func(until int32) *fake.Clientset {
		client := newCluster()
		var calls atomic.Int32
		client.PrependReactor("get", "clusterroles", func(clienttesting.Action) (bool, runtime.Object, error) {
			if calls.Add(1) > until {
				return false, nil, nil
			}
			return true, nil, apierrors.NewInternalError(errors.New("etcdserver: no leader"))
		})
		return client
	}
	synctest.Test(t, func(t *testing.T) {
		if err := RBAC(t.Context(), unavailable(20)); err != nil {
			t.Errorf("after some failures: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		err := RBAC(t.Context(), unavailable(1<<30))
		if err == nil || !strings.HasPrefix(err.Error(), "bootstrap roles: ") || !strings.Contains(err.Error(), "no leader") {
			t.Errorf("without a leader for ever: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := RBAC(ctx, unavailable(1<<30)); err != nil {
			t.Errorf("the server ends: %v", err)
		}
	})
}

func TestPriorityClasses(t *testing.T) {
	client := fake.NewClientset()
	if err := PriorityClasses(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	want := []string{"create priorityclasses system-cluster-critical", "create priorityclasses system-node-critical"}
	if diff := cmp.Diff(want, writes(client)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, value := range map[string]int32{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000} {
		class, err := client.SchedulingV1().PriorityClasses().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || class.Value != value {
			t.Errorf("%s: %d, %v", name, class.Value, err)
		}
	}
	client.ClearActions()
	if err := PriorityClasses(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if got := writes(client); len(got) != 0 {
		t.Errorf("a second run changes %v", got)
	}
}

func TestPriorityClassesBesideAnotherServer(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "priorityclasses", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "priorityclasses"}, "x")
	})
	if err := PriorityClasses(t.Context(), client); err != nil {
		t.Fatal(err)
	}
}

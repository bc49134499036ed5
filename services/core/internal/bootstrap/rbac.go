package bootstrap

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// reconcilers is the number of objects that are reconciled at a time. A start waits for
// about 150 objects, with two requests each.
const reconcilers = 8

// RBAC creates the roles and bindings of Kubernetes' own components and adds missing rules
// and subjects to existing ones, as kube-apiserver does at every start. It keeps additions
// of an administrator and does not change objects annotated with
// rbac.authorization.kubernetes.io/autoupdate=false. It returns when all are complete.
//
// It does not migrate clusters from before Kubernetes 1.14, as kube-apiserver does.
func RBAC(ctx context.Context, client kubernetes.Interface) error {
	return untilDone(ctx, "bootstrap roles", func(ctx context.Context) error { return reconcileRBAC(ctx, client) })
}

// reconcileRBAC makes one attempt: first roles, then the bindings to them.
func reconcileRBAC(ctx context.Context, client kubernetes.Interface) error {
	if err := inParallel(ctx, roleReconcilers(client)); err != nil {
		return err
	}
	return inParallel(ctx, bindingReconcilers(client))
}

// inParallel runs all functions, also after errors, and joins the errors.
func inParallel(ctx context.Context, reconcile []func() error) error {
	errs := make([]error, len(reconcile))
	var group errgroup.Group
	group.SetLimit(reconcilers)
	for i, run := range reconcile {
		group.Go(func() error {
			if ctx.Err() == nil {
				errs[i] = retry.OnError(retry.DefaultBackoff, contended, run)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
	return errors.Join(append(errs, ctx.Err())...)
}

// contended reports whether err may come from another server that starts at the same time.
func contended(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsServiceUnavailable(err)
}

// reconciler returns run without its result, and with the name of the object in its error.
func reconciler[Result any](kind, name string, run func() (Result, error)) func() error {
	return func() error {
		if _, err := run(); err != nil {
			return fmt.Errorf("%s %s: %w", kind, name, err)
		}
		return nil
	}
}

func roleReconcilers(client kubernetes.Interface) []func() error {
	var all []func() error
	add := func(kind, name string, owner reconciliation.RuleOwner, modifier reconciliation.RuleOwnerModifier) {
		options := &reconciliation.ReconcileRoleOptions{Role: owner, Client: modifier, Confirm: true}
		all = append(all, reconciler(kind, name, options.Run))
	}
	clusterRoles := reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()}
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		add("clusterrole", role.Name, reconciliation.ClusterRoleRuleOwner{ClusterRole: &role}, clusterRoles)
	}
	roles := reconciliation.RoleModifier{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()}
	for namespace, inNamespace := range bootstrappolicy.NamespaceRoles() {
		for _, role := range inNamespace {
			add("role", namespace+"/"+role.Name, reconciliation.RoleRuleOwner{Role: &role}, roles)
		}
	}
	return all
}

func bindingReconcilers(client kubernetes.Interface) []func() error {
	var all []func() error
	add := func(kind, name string, binding reconciliation.RoleBinding, modifier reconciliation.RoleBindingModifier) {
		options := &reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: modifier, Confirm: true}
		all = append(all, reconciler(kind, name, options.Run))
	}
	clusterBindings := reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		add("clusterrolebinding", binding.Name, reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding}, clusterBindings)
	}
	bindings := reconciliation.RoleBindingClientAdapter{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()}
	for namespace, inNamespace := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range inNamespace {
			add("rolebinding", namespace+"/"+binding.Name, reconciliation.RoleBindingAdapter{RoleBinding: &binding}, bindings)
		}
	}
	return all
}

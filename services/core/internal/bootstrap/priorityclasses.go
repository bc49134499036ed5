package bootstrap

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
)

// PriorityClasses creates the two priority classes of Kubernetes' own components. It does
// not change existing ones, of which only the description can have been changed.
func PriorityClasses(ctx context.Context, client kubernetes.Interface) error {
	return untilDone(ctx, "system priority classes", func(ctx context.Context) error {
		for _, class := range schedulingv1.SystemPriorityClasses() {
			_, err := client.SchedulingV1().PriorityClasses().Get(ctx, class.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("priorityclass %s: %w", class.Name, err)
			}
		}
		return nil
	})
}

// Package bootstrap creates the roles, bindings and priority classes of Kubernetes' own
// components in a new cluster. [RBAC] and [PriorityClasses] may run concurrently, also in
// several servers.
//
// The objects are those of kube-apiserver. Its hooks each wait for a second first and create
// the objects one at a time, which would be most of the time of a start.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

const (
	// retryPause is the time between attempts, retryLimit that of all attempts.
	retryPause = 500 * time.Millisecond
	retryLimit = 30 * time.Second
)

// untilDone calls attempt until it succeeds: it fails while etcd elects a leader, for
// example. The end of ctx is no error.
func untilDone(ctx context.Context, what string, attempt func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, retryPause, retryLimit, true, func(ctx context.Context) (bool, error) {
		err := attempt(ctx)
		// Do not report an error that the time limit itself caused.
		if err == nil || last == nil || ctx.Err() == nil {
			last = err
		}
		if err != nil {
			klog.FromContext(ctx).Info("bootstrap is not complete, trying again", "what", what, "reason", err.Error())
		}
		return err == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		return errors.Join(fmt.Errorf("%s: %w", what, err), last)
	}
	return nil
}

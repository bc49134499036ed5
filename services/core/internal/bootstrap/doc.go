// Package bootstrap gives a new cluster its first objects: the roles and bindings
// of Kubernetes' own components and their priority classes.
//
// What is created is kube-apiserver's, word for word. Its own hooks begin with a
// pause of a second each and go through the objects one by one, which is most of a
// start; these do not.
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
	// retryPause is the time between two attempts, retryLimit that for all of them:
	// a cluster without its roles is of no use.
	retryPause = 500 * time.Millisecond
	retryLimit = 30 * time.Second
)

// untilDone tries until attempt succeeds, which is needed while etcd elects a
// leader. The end of ctx is not an error.
func untilDone(ctx context.Context, what string, attempt func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, retryPause, retryLimit, true, func(ctx context.Context) (bool, error) {
		err := attempt(ctx)
		// What the end of the time does to an attempt is not why there was none
		// that succeeded.
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

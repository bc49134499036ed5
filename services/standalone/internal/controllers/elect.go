package controllers

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The Lease of the process that runs the controllers, and kube-controller-manager's times:
// after leaseDuration without a renewal another process takes over, renewDeadline is when the
// holder gives up, and retryPeriod how often it renews and others look.
const (
	leaseNamespace = metav1.NamespaceSystem
	leaseName      = "triune-controllers"
	leaseDuration  = 15 * time.Second
	renewDeadline  = 10 * time.Second
	retryPeriod    = 2 * time.Second
)

// elect calls run whenever this process holds the Lease, with a context that ends when it
// holds it no more, until ctx ends or run fails. It gives the Lease back after run has returned.
func elect(ctx context.Context, client kubernetes.Interface, run func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	identity := host + "_" + uuid.NewString()
	for ctx.Err() == nil {
		if err := lead(ctx, client, identity, run); err != nil {
			return err
		}
	}
	return nil
}

// lead waits for the Lease and calls run once.
func lead(ctx context.Context, client kubernetes.Interface, identity string, run func(context.Context) error) error {
	// The election outlives ctx, so that the Lease is held until run has returned.
	election, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var leading atomic.Bool
	defer context.AfterFunc(ctx, func() {
		if !leading.Load() {
			release()
		}
	})()
	done := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: leaseNamespace, Name: leaseName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Name:            leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				leading.Store(true)
				term, end := context.WithCancel(held)
				defer end()
				defer context.AfterFunc(ctx, end)()
				done <- run(term)
				release()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	elector.Run(election)
	if !leading.Load() {
		return nil
	}
	return <-done
}

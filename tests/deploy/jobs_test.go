package deploy

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// runJobs runs the pods of Jobs: those of certificates with our program, all others just
// succeed.
func runJobs(t *testing.T, h host) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	dir, seen := t.TempDir(), map[string]bool{}
	look := func() error {
		pods, err := h.client.CoreV1().Pods(h.namespace).List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil || seen[pod.Name] {
				continue
			}
			seen[pod.Name] = true
			code := int32(0)
			pod.Status.Phase = corev1.PodSucceeded
			if pod.Labels["app.kubernetes.io/component"] == "pki" {
				out, err := h.pkiSecrets(ctx, pod.Spec, dir)
				if err != nil {
					pod.Status.Phase, code = corev1.PodFailed, 1
				}
				t.Logf("%s: %v\n%s", pod.Name, err, out)
			}
			for i := range pod.Status.ContainerStatuses {
				pod.Status.ContainerStatuses[i].Ready = false
				pod.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}}
			}
			if _, err := h.client.CoreV1().Pods(h.namespace).UpdateStatus(ctx, &pod, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
				return err
			} else if err != nil {
				seen[pod.Name] = false
			}
		}
		return nil
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := look(); err != nil && ctx.Err() == nil {
				t.Logf("pods of Jobs: %v", err)
			}
		}
	}()
}

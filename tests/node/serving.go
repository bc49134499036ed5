package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificates "k8s.io/api/certificates/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// approveServing starts to approve each certificate that kubelet asks for to serve with, as an
// administrator would: no controller of Kubernetes does that. The node's Close ends it.
func (n *Node) approveServing() error {
	config, err := n.cluster.REST()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	n.endApproval = func() error {
		cancel()
		return <-ended
	}
	go func() {
		// An API server may be restarting, and one error of many is enough.
		var last error
		for {
			select {
			case <-ctx.Done():
				ended <- last
				return
			case <-time.After(500 * time.Millisecond):
			}
			if err := approve(ctx, client, "system:node:"+n.Name); err == nil {
				last = nil
			} else if ctx.Err() == nil {
				last = err
			}
		}
	}()
	return nil
}

// approve approves what the user has asked for to serve with.
func approve(ctx context.Context, client kubernetes.Interface, user string) error {
	requests, err := client.CertificatesV1().CertificateSigningRequests().List(ctx, meta.ListOptions{
		FieldSelector: "spec.signerName=" + certificates.KubeletServingSignerName,
	})
	if err != nil {
		return fmt.Errorf("list certificate signing requests: %w", err)
	}
	var errs []error
	for _, request := range requests.Items {
		if request.Spec.Username != user || len(request.Status.Conditions) > 0 {
			continue
		}
		request.Status.Conditions = []certificates.CertificateSigningRequestCondition{{
			Type: certificates.CertificateApproved, Status: core.ConditionTrue, Reason: "Approved", Message: "approved for the node of this test",
		}}
		if _, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, request.Name, &request, meta.UpdateOptions{}); err != nil {
			errs = append(errs, fmt.Errorf("approve %s: %w", request.Name, err))
		}
	}
	return errors.Join(errs...)
}

package controllers

import (
	"context"
	"fmt"
	"time"

	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/bootstrap"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// The controllers that issue credentials.

// signingDuration is the longest life of a signed certificate, kube-controller-manager's
// default of --cluster-signing-duration.
const signingDuration = 365 * 24 * time.Hour

func newApproving(ctx context.Context, d *dependencies) (func(context.Context), error) {
	controller := approver.NewCSRApprovingController(ctx, d.client, d.informers.Certificates().V1().CertificateSigningRequests())
	return func(ctx context.Context) { controller.Run(ctx, workers) }, nil
}

// newSigning makes the controllers of Kubernetes' four signers.
func newSigning(ctx context.Context, d *dependencies) (func(context.Context), error) {
	if d.SigningCertFile == "" || d.SigningKeyFile == "" {
		return nil, nil
	}
	requests := d.informers.Certificates().V1().CertificateSigningRequests()
	var runs []func(context.Context)
	for _, newSigner := range []func(context.Context, kubernetes.Interface, certificatesinformers.CertificateSigningRequestInformer, string, string, time.Duration) (*signer.CSRSigningController, error){
		signer.NewKubeletServingCSRSigningController,
		signer.NewKubeletClientCSRSigningController,
		signer.NewKubeAPIServerClientCSRSigningController,
		signer.NewLegacyUnknownCSRSigningController,
	} {
		controller, err := newSigner(ctx, d.client, requests, d.SigningCertFile, d.SigningKeyFile, signingDuration)
		if err != nil {
			return nil, fmt.Errorf("--cluster-signing-cert-file=%s, --cluster-signing-key-file=%s: %w", d.SigningCertFile, d.SigningKeyFile, err)
		}
		runs = append(runs, func(ctx context.Context) { controller.Run(ctx, workers) })
	}
	return func(ctx context.Context) { runAll(ctx, runs...) }, nil
}

func newRequestCleaner(_ context.Context, d *dependencies) (func(context.Context), error) {
	controller := cleaner.NewCSRCleanerController(d.client.CertificatesV1().CertificateSigningRequests(), d.informers.Certificates().V1().CertificateSigningRequests())
	return func(ctx context.Context) { controller.Run(ctx, 1) }, nil
}

func newServiceAccountToken(ctx context.Context, d *dependencies) (func(context.Context), error) {
	if d.TokenKeyFile == "" {
		return nil, nil
	}
	key, err := keyutil.PrivateKeyFromFile(d.TokenKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--service-account-signing-key-file=%s: %w", d.TokenKeyFile, err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("--service-account-signing-key-file=%s: %w", d.TokenKeyFile, err)
	}
	controller, err := serviceaccountcontroller.NewTokensController(klog.FromContext(ctx),
		d.informers.Core().V1().ServiceAccounts(), d.informers.Core().V1().Secrets(), d.client,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: d.RootCA})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { controller.Run(ctx, workers) }, nil
}

func newBootstrapSigner(_ context.Context, d *dependencies) (func(context.Context), error) {
	controller, err := bootstrap.NewSigner(d.client, d.informers.Core().V1().Secrets(), d.informers.Core().V1().ConfigMaps(), bootstrap.DefaultSignerOptions())
	if err != nil {
		return nil, err
	}
	return controller.Run, nil
}

func newTokenCleaner(_ context.Context, d *dependencies) (func(context.Context), error) {
	controller, err := bootstrap.NewTokenCleaner(d.client, d.informers.Core().V1().Secrets(), bootstrap.DefaultTokenCleanerOptions())
	if err != nil {
		return nil, err
	}
	return controller.Run, nil
}

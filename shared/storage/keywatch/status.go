package keywatch

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/storage/bytecache"
)

// Status returns the object of the ERROR event that ends a watch with err.
func (s *Source) Status(err error) *metav1.Status {
	var expired *bytecache.ExpiredError
	switch {
	case s.Uncached && errors.As(err, &expired):
		err = apierrors.NewResourceExpired(uncachedExpired)
	case errors.As(err, &expired):
		err = apierrors.NewResourceExpired(expiredMessage(expired.Wanted, expired.Oldest))
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	return &st
}

// uncachedExpired is the message of kube-apiserver without a watch cache.
const uncachedExpired = "The resourceVersion for the provided watch is too old."

func expiredMessage(wanted, oldest int64) string {
	if oldest == 0 {
		return fmt.Sprintf("too old resource version: %d", wanted)
	}
	return fmt.Sprintf("too old resource version: %d (%d)", wanted, oldest)
}

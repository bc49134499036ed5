package authn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// TestReviewsInFlightAreBounded: reviews continue after their clients have gone, so the
// limits on requests do not bound them.
func TestReviewsInFlightAreBounded(t *testing.T) {
	const limit = 1 << 20
	began, end := make(chan struct{}, 1000), make(chan struct{})
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		began <- struct{}{}
		<-end
		return nil, false, nil
	})
	a := &reviewLimiter{next: core, limit: limit}
	token := strings.Repeat("x", 100<<10)
	const most = limit / (100<<10 + reviewOverhead)
	var reviews sync.WaitGroup
	for range most {
		reviews.Go(func() {
			if _, _, err := a.AuthenticateToken(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	for range most {
		<-began
	}
	for range 10 {
		if _, ok, err := a.AuthenticateToken(t.Context(), token); ok || !errors.Is(err, errTooManyReviews) {
			t.Errorf("one more: valid: %t (%v)", ok, err)
		}
	}
	close(end)
	reviews.Wait()
	if _, _, err := a.AuthenticateToken(t.Context(), token); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

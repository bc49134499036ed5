package authn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"triune.dev/shared/server/authn/outage"
	"triune.dev/shared/transport/tierclient"
)

// maxRejectionTTL bounds how long core's rejection of a token is cached. It is short
// because the token may become valid (a bootstrap token that is about to be created), and
// not zero because clients with a wrong token tend to retry at once.
const maxRejectionTTL = 2 * time.Second

// tokenReviews returns an authenticator that asks core about tokens. Its answers are cached
// for seconds, and for longer while core is not available.
func (o *Options) tokenReviews(core *rest.Config) (authenticator.Token, error) {
	client, err := kubernetes.NewForConfig(tierclient.WithoutRetries(core))
	if err != nil {
		return nil, fmt.Errorf("make a client for token reviews: %w", err)
	}
	once := wait.Backoff{Steps: 1}
	reviews, err := webhook.NewFromInterface(client.AuthenticationV1(), o.Audiences, once, o.ReviewTimeout,
		webhook.AuthenticatorMetrics{
			RecordRequestTotal:   authenticatorfactory.RecordRequestTotal,
			RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
		})
	if err != nil {
		return nil, fmt.Errorf("review tokens: %w", err)
	}
	return outageReporter{o.cacheReviews(reviews, clock.RealClock{})}, nil
}

// cacheReviews puts the caches in front of reviews.
func (o *Options) cacheReviews(reviews authenticator.Token, c clock.Clock) authenticator.Token {
	limited := &reviewLimiter{next: newStaleTokens(reviews, o.MaxStaleness, c), limit: maxReviewBytes}
	// Errors are not cached, because core may be back at the next request.
	accepted := cache.New(limited, false, o.ReviewCacheTTL, 0)
	return newRejectedTokens(accepted, min(o.ReviewCacheTTL, maxRejectionTTL), c)
}

// outageReporter reports to the handler chain that core could not review a token. It is
// outside the cache, because requests share the cache's lookups, whose context is none of
// theirs.
type outageReporter struct{ tokens authenticator.Token }

// AuthenticateToken implements authenticator.Token.
func (r outageReporter) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := r.tokens.AuthenticateToken(ctx, token)
	switch {
	case errors.Is(err, errTooManyReviews):
		outage.Report(ctx, err.Error())
	case isOutage(err):
		outage.Report(ctx, "the bearer token cannot be verified: the core tier is not available")
	case isReviewRefused(err):
		outage.Report(ctx, "the bearer token cannot be verified: the core tier refuses to review it")
	}
	return response, ok, err
}

// isOutage reports whether core did not answer or failed. It distinguishes that from the
// rejection of a token, whose error has no type, and from a refused review.
func isOutage(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
	}
	var transport *url.Error
	return errors.As(err, &transport) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// isReviewRefused reports whether core refused to review a token, because it does not
// authenticate this tier or does not authorize the review. That says nothing about the
// token.
func isReviewRefused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !isOutage(err)
}

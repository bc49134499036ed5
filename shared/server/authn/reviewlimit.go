package authn

import (
	"context"
	"errors"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

const (
	// maxReviewBytes bounds the memory of TokenReviews in flight. A review continues after
	// the client that sent the token has gone, so the limits on requests do not bound them.
	maxReviewBytes = 32 << 20
	// reviewOverhead approximates the memory of a review besides its token.
	reviewOverhead = 4 << 10
)

var errTooManyReviews = errors.New("too many bearer tokens are being verified")

// reviewLimiter bounds the memory of reviews in flight.
type reviewLimiter struct {
	next  authenticator.Token
	limit int64 // bytes
	used  atomic.Int64
}

// AuthenticateToken implements authenticator.Token.
func (l *reviewLimiter) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	size := int64(len(token) + reviewOverhead)
	defer l.used.Add(-size)
	if l.used.Add(size) > l.limit {
		return nil, false, errTooManyReviews
	}
	return l.next.AuthenticateToken(ctx, token)
}

package authn

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"triune.dev/shared/server/authn/outage"
	"triune.dev/shared/transport/tierclient"
)

const (
	// failureCacheTTL is how long core's refusal of a token is remembered. It is
	// short because a refused token may become a good one (a bootstrap token that
	// is about to be created), and not zero because a client with a wrong token
	// tends to come back at once.
	failureCacheTTL = 2 * time.Second
	// rememberedTokens bounds the memory for tokens that have been good once, and
	// maxRemembered the bytes of the user of one of them.
	rememberedTokens = 4096
	maxRemembered    = 16 << 10
)

// reviewed asks core about tokens. Its answers are kept for a few seconds, and
// longer while core is away.
func (o *Options) reviewed(core *rest.Config) (authenticator.Token, error) {
	client, err := kubernetes.NewForConfig(tierclient.WithoutRetries(core))
	if err != nil {
		return nil, fmt.Errorf("make a client for token reviews: %w", err)
	}
	once := wait.Backoff{Steps: 1}
	review, err := webhook.NewFromInterface(client.AuthenticationV1(), o.Audiences, once, o.ReviewTimeout,
		webhook.AuthenticatorMetrics{
			RecordRequestTotal:   authenticatorfactory.RecordRequestTotal,
			RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
		})
	if err != nil {
		return nil, fmt.Errorf("review tokens: %w", err)
	}
	return reporting{o.remembering(review, clock.RealClock{})}, nil
}

// remembering keeps what core has said.
func (o *Options) remembering(review authenticator.Token, c clock.Clock) authenticator.Token {
	lasting := &admission{next: newMemory(review, o.MaxStaleness, c), limit: underReview}
	// Errors are not kept: core may be back with the next request.
	good := cache.New(lasting, false, o.ReviewCacheTTL, 0)
	return newRefusals(good, min(o.ReviewCacheTTL, failureCacheTTL), c)
}

// reporting tells the handler chain when core could not be asked. It stands
// outside the cache, whose lookups are shared by requests and know none of them.
type reporting struct{ tokens authenticator.Token }

func (r reporting) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := r.tokens.AuthenticateToken(ctx, token)
	switch {
	case errors.Is(err, errTooManyReviews):
		outage.Report(ctx, err.Error())
	case isOutage(err):
		outage.Report(ctx, "the bearer token cannot be verified: the core tier is not available")
	case isRefusal(err):
		outage.Report(ctx, "the bearer token cannot be verified: the core tier refuses to review it")
	}
	return response, ok, err
}

// isOutage tells an error on the way to core, or of core, from core's saying that
// a token is bad, which has no type, and from its refusal to look.
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

// isRefusal tells that core has refused to review a token, which says nothing about the
// token: core does not believe this tier, or does not let it ask.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !isOutage(err)
}

// memory answers for core while it is away: a token that has been good not long
// ago is good still. It outlives neither its own expiry nor the limit, and core
// takes it back with its next answer.
type memory struct {
	next  authenticator.Token
	limit time.Duration
	clock clock.Clock
	good  *utilcache.LRUExpireCache
}

func newMemory(next authenticator.Token, limit time.Duration, c clock.Clock) authenticator.Token {
	if limit <= 0 {
		return next
	}
	return &memory{next: next, limit: limit, clock: c, good: utilcache.NewLRUExpireCacheWithClock(rememberedTokens, c)}
}

type remembered struct {
	response *authenticator.Response
	expires  time.Time // zero for never
}

func (m *memory) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := m.next.AuthenticateToken(ctx, token)
	key := keyOf(ctx, token)
	switch {
	case isOutage(err):
		if known, found := m.good.Get(key); found {
			known := known.(remembered)
			if known.expires.IsZero() || m.clock.Now().Before(known.expires) {
				return known.response, true, nil
			}
		}
	case ok && err == nil && sizeOf(response.User) <= maxRemembered:
		m.good.Add(key, remembered{response, expiryOf(token)}, m.limit)
	default:
		m.good.Remove(key)
	}
	return response, ok, err
}

// sizeOf is the number of bytes of what is known of a user.
func sizeOf(u user.Info) int {
	size := len(u.GetName()) + len(u.GetUID())
	for _, group := range u.GetGroups() {
		size += len(group)
	}
	for key, values := range u.GetExtra() {
		size += len(key)
		for _, value := range values {
			size += len(value)
		}
	}
	return size
}

// keyOf identifies a token, and the audiences that it was good for, without
// keeping the token.
func keyOf(ctx context.Context, token string) [sha256.Size]byte {
	audiences, _ := authenticator.AudiencesFrom(ctx)
	return sha256.Sum256([]byte(token + "\x00" + strings.Join(audiences, "\x00")))
}

// expiryOf reads the expiry (RFC 7519 section 4.1.4) of a token that has been
// verified; zero if it has none, or is no JWT.
func expiryOf(token string) time.Time {
	parts := strings.SplitN(token, ".", 4)
	if len(parts) != 3 {
		return time.Time{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expiry json.Number `json:"exp"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return time.Time{}
	}
	seconds, err := claims.Expiry.Float64()
	if err != nil {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}

package authn

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
)

const (
	maxStaleTokens = 4096
	// maxStaleUserBytes bounds the user of one stale token.
	maxStaleUserBytes = 16 << 10
)

// staleTokens authenticates tokens while core is not available: a token that core has
// authenticated stays valid for maxAge, but not beyond its own expiry. Core's next answer
// replaces that.
type staleTokens struct {
	next     authenticator.Token
	maxAge   time.Duration
	clock    clock.Clock
	accepted *utilcache.LRUExpireCache
}

func newStaleTokens(next authenticator.Token, maxAge time.Duration, c clock.Clock) authenticator.Token {
	if maxAge <= 0 {
		return next
	}
	return &staleTokens{next: next, maxAge: maxAge, clock: c, accepted: utilcache.NewLRUExpireCacheWithClock(maxStaleTokens, c)}
}

type acceptedToken struct {
	response *authenticator.Response
	expires  time.Time // zero for never
}

// AuthenticateToken implements authenticator.Token.
func (s *staleTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := s.next.AuthenticateToken(ctx, token)
	key := tokenKey(ctx, token)
	switch {
	case isOutage(err):
		if value, found := s.accepted.Get(key); found {
			accepted := value.(acceptedToken)
			if accepted.expires.IsZero() || s.clock.Now().Before(accepted.expires) {
				return accepted.response, true, nil
			}
		}
	case ok && err == nil && userBytes(response.User) <= maxStaleUserBytes:
		s.accepted.Add(key, acceptedToken{response, jwtExpiry(token)}, s.maxAge)
	default:
		s.accepted.Remove(key)
	}
	return response, ok, err
}

// userBytes returns the approximate size of a user.
func userBytes(u user.Info) int {
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

// tokenKey returns a key for a token and its audiences that does not reveal the token.
func tokenKey(ctx context.Context, token string) [sha256.Size]byte {
	audiences, _ := authenticator.AudiencesFrom(ctx)
	return sha256.Sum256([]byte(token + "\x00" + strings.Join(audiences, "\x00")))
}

// jwtExpiry returns the expiry (RFC 7519 section 4.1.4) of a verified token. It is zero if
// the token has none or is no JWT.
func jwtExpiry(token string) time.Time {
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

package authn

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"
)

// Anybody can send a token. What follows bounds what those that are not good may occupy.

// refusals remembers tokens that core has refused. Its size is fixed: of a token there is
// a hash, and where two have the same place the later one has it.
type refusals struct {
	next  authenticator.Token
	ttl   time.Duration
	clock clock.PassiveClock
	seed  maphash.Seed

	mu     sync.RWMutex
	places [1 << 12]refusal // guarded by mu
}

type refusal struct {
	hash  uint64
	until int64 // in nanoseconds since 1970
}

func newRefusals(next authenticator.Token, ttl time.Duration, c clock.PassiveClock) authenticator.Token {
	if ttl <= 0 {
		return next
	}
	return &refusals{next: next, ttl: ttl, clock: c, seed: maphash.MakeSeed()}
}

// AuthenticateToken implements authenticator.Token.
func (r *refusals) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	hash := r.hash(ctx, token)
	place := &r.places[hash%uint64(len(r.places))]
	r.mu.RLock()
	known := *place
	r.mu.RUnlock()
	if known.hash == hash && r.clock.Now().UnixNano() < known.until {
		return nil, false, nil
	}
	response, ok, err := r.next.AuthenticateToken(ctx, token)
	if !ok && err == nil {
		r.mu.Lock()
		*place = refusal{hash, r.clock.Now().Add(r.ttl).UnixNano()}
		r.mu.Unlock()
	}
	return response, ok, err
}

// hash cannot be guessed, so nobody finds a token that has another one refused.
func (r *refusals) hash(ctx context.Context, token string) uint64 {
	var h maphash.Hash
	h.SetSeed(r.seed)
	_, _ = h.WriteString(token) // never fails
	audiences, _ := authenticator.AudiencesFrom(ctx)
	for _, audience := range audiences {
		_ = h.WriteByte(0)
		_, _ = h.WriteString(audience)
	}
	return h.Sum64()
}

const (
	// underReview bounds the bytes of tokens that core is being asked about. A review goes
	// on when the client that sent the token has gone.
	underReview = 32 << 20
	// reviewBytes approximates the memory of a review besides its token.
	reviewBytes = 4 << 10
)

var errTooManyReviews = errors.New("too many bearer tokens are being verified")

// admission bounds reviews that are under way, by the bytes they take.
type admission struct {
	next  authenticator.Token
	limit int64
	taken atomic.Int64
}

// AuthenticateToken implements authenticator.Token.
func (a *admission) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	size := int64(len(token) + reviewBytes)
	defer a.taken.Add(-size)
	if a.taken.Add(size) > a.limit {
		return nil, false, errTooManyReviews
	}
	return a.next.AuthenticateToken(ctx, token)
}

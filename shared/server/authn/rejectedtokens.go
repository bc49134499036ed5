package authn

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"
)

// rejectedTokens caches rejected tokens. Anybody can send one, so the cache has a fixed
// size: it holds hashes, and a hash overwrites another in the same slot.
type rejectedTokens struct {
	next  authenticator.Token
	ttl   time.Duration
	clock clock.PassiveClock
	seed  maphash.Seed

	mu    sync.RWMutex
	slots [1 << 12]rejectedToken // guarded by mu
}

type rejectedToken struct {
	hash  uint64
	until int64 // in nanoseconds since 1970
}

func newRejectedTokens(next authenticator.Token, ttl time.Duration, c clock.PassiveClock) authenticator.Token {
	if ttl <= 0 {
		return next
	}
	return &rejectedTokens{next: next, ttl: ttl, clock: c, seed: maphash.MakeSeed()}
}

// AuthenticateToken implements authenticator.Token.
func (r *rejectedTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	hash := r.hash(ctx, token)
	slot := &r.slots[hash%uint64(len(r.slots))]
	r.mu.RLock()
	cached := *slot
	r.mu.RUnlock()
	if cached.hash == hash && r.clock.Now().UnixNano() < cached.until {
		return nil, false, nil
	}
	response, ok, err := r.next.AuthenticateToken(ctx, token)
	if !ok && err == nil {
		r.mu.Lock()
		*slot = rejectedToken{hash, r.clock.Now().Add(r.ttl).UnixNano()}
		r.mu.Unlock()
	}
	return response, ok, err
}

// hash is seeded, so that nobody can construct a token that makes another be rejected.
func (r *rejectedTokens) hash(ctx context.Context, token string) uint64 {
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

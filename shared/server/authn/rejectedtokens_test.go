package authn

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRejectionsAreCachedForAWhile(t *testing.T) {
	asked := map[string]int{}
	core := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		asked[token]++
		switch token {
		case "good":
			return &authenticator.Response{User: &user.DefaultInfo{Name: "robot"}}, true, nil
		case "error":
			return nil, false, errors.New("away")
		}
		return nil, false, nil
	})
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRejectedTokens(core, time.Second, clock)
	ask := func(ctx context.Context, token string, want int) {
		t.Helper()
		if _, ok, _ := r.AuthenticateToken(ctx, token); ok != (token == "good") {
			t.Errorf("%s: valid: %t", token, ok)
		}
		if asked[token] != want {
			t.Errorf("%s: core is asked %d times, want %d", token, asked[token], want)
		}
	}
	ctx := t.Context()
	ask(ctx, "bad", 1)
	ask(ctx, "bad", 1)
	ask(authenticator.WithAudiences(ctx, authenticator.Audiences{"another"}), "bad", 2)
	ask(ctx, "good", 1)
	ask(ctx, "good", 2)
	ask(ctx, "error", 1)
	ask(ctx, "error", 2)
	clock.Step(time.Second)
	ask(ctx, "bad", 3)
}

// TestRejectedTokensUseNoMemory, however many there are.
func TestRejectedTokensUseNoMemory(t *testing.T) {
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, nil })
	tokens := (&Options{ReviewCacheTTL: time.Hour, MaxStaleness: time.Hour}).cacheReviews(core, clocktesting.NewFakeClock(time.Now()))
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 20_000 {
		if _, ok, err := tokens.AuthenticateToken(t.Context(), fmt.Sprint("token", i)); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("20000 rejected tokens use %d bytes", grown)
	}
	runtime.KeepAlive(tokens)
}

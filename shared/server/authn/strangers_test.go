package authn

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRefusalsAreRememberedForAWhile(t *testing.T) {
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
	r := newRefusals(core, time.Second, clock)
	ask := func(ctx context.Context, token string, want int) {
		t.Helper()
		if _, ok, _ := r.AuthenticateToken(ctx, token); ok != (token == "good") {
			t.Errorf("%s: good: %t", token, ok)
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

// Tokens that nobody knows occupy nothing, however many there are.
func TestRefusedTokensAreNotKept(t *testing.T) {
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, nil })
	tokens := (&Options{ReviewCacheTTL: time.Hour, MaxStaleness: time.Hour}).remembering(core, clocktesting.NewFakeClock(time.Now()))
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
		t.Errorf("20000 refused tokens take %d bytes", grown)
	}
	runtime.KeepAlive(tokens)
}

// Users with very long names are not remembered.
func TestMemoryIsBoundedInBytes(t *testing.T) {
	name := "robot"
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{
			Name: name, Groups: []string{name}, Extra: map[string][]string{name: {name}},
		}}, true, nil
	})
	m := newMemory(core, time.Hour, clocktesting.NewFakeClock(time.Now())).(*memory)
	for i, name1 := range []string{"robot", strings.Repeat("x", maxRemembered/4+1)} {
		name = name1
		if _, ok, err := m.AuthenticateToken(t.Context(), fmt.Sprint("token", i)); !ok {
			t.Fatal(err)
		}
	}
	if n := len(m.good.Keys()); n != 1 {
		t.Errorf("%d users are remembered, want 1", n)
	}
}

// Reviews go on when a client has gone, so it is not the requests in flight that bound
// them.
func TestReviewsUnderWayAreBounded(t *testing.T) {
	const limit = 1 << 20
	began, end := make(chan struct{}, 1000), make(chan struct{})
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		began <- struct{}{}
		<-end
		return nil, false, nil
	})
	a := &admission{next: core, limit: limit}
	token := strings.Repeat("x", 100<<10)
	const most = limit / (100<<10 + reviewBytes)
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
			t.Errorf("one more: good: %t (%v)", ok, err)
		}
	}
	close(end)
	reviews.Wait()
	if _, _, err := a.AuthenticateToken(t.Context(), token); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

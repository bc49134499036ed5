package authn

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"
)

func jwt(expires time.Time) string {
	payload := fmt.Sprintf(`{"exp":%d}`, expires.Unix())
	return "header." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".signature"
}

// TestStaleTokens: how long an accepted token stays valid while core is not available.
func TestStaleTokens(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	const limit = 10 * time.Minute
	away, bad := apierrors.NewServiceUnavailable("away"), errors.New("invalid bearer token")
	broken, busy := apierrors.NewInternalError(errors.New("broken")), apierrors.NewTooManyRequests("busy", 1)
	// Core refuses this tier, not the token. An old answer is not used then.
	refused, distrusted := apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", nil), apierrors.NewUnauthorized("Unauthorized")
	type step struct {
		after time.Duration
		err   error // from core
		want  bool
	}
	tests := map[string]struct {
		token string
		steps []step
	}{
		"away for a moment":       {"opaque", []step{{0, nil, true}, {time.Minute, away, true}, {time.Minute, away, true}}},
		"away for too long":       {"opaque", []step{{0, nil, true}, {limit - 1, away, true}, {2, away, false}}},
		"never accepted":          {"opaque", []step{{0, away, false}, {time.Second, nil, true}, {time.Second, away, true}}},
		"rejected since":          {"opaque", []step{{0, nil, true}, {time.Second, bad, false}, {time.Second, away, false}}},
		"accepted again":          {"opaque", []step{{0, nil, true}, {limit, nil, true}, {limit - 1, away, true}}},
		"expires in the meantime": {jwt(start.Add(time.Minute)), []step{{0, nil, true}, {time.Minute - 1, away, true}, {1, away, false}}},
		"expires later":           {jwt(start.Add(time.Hour)), []step{{0, nil, true}, {time.Minute, away, true}}},
		"broken":                  {"opaque", []step{{0, nil, true}, {time.Minute, broken, true}}},
		"busy":                    {"opaque", []step{{0, nil, true}, {time.Minute, busy, true}}},
		"refused":                 {"opaque", []step{{0, nil, true}, {time.Second, refused, false}, {time.Second, away, false}}},
		"distrusted":              {"opaque", []step{{0, nil, true}, {time.Second, distrusted, false}, {time.Second, away, false}}},
		"almost a JWT":            {"a.b.c", []step{{0, nil, true}, {time.Minute, away, true}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var err error
			core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
				if err != nil {
					return nil, false, err
				}
				return &authenticator.Response{User: &user.DefaultInfo{Name: "robot"}}, true, nil
			})
			clock := clocktesting.NewFakeClock(start)
			m := newStaleTokens(core, limit, clock)
			for i, step := range test.steps {
				clock.Step(step.after)
				err = step.err
				response, ok, got := m.AuthenticateToken(t.Context(), test.token)
				if ok != step.want {
					t.Fatalf("step %d: valid: %t (%v), want %t", i, ok, got, step.want)
				}
				if ok && response.User.GetName() != "robot" {
					t.Errorf("step %d: %s", i, response.User.GetName())
				}
				if !ok && !errors.Is(got, step.err) {
					t.Errorf("step %d: error %v, want %v", i, got, step.err)
				}
			}
		})
	}
}

func TestStaleTokensHaveAudiences(t *testing.T) {
	away := false
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		if away {
			return nil, false, apierrors.NewServiceUnavailable("away")
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "robot"}}, true, nil
	})
	m := newStaleTokens(core, time.Hour, clocktesting.NewFakeClock(time.Now()))
	one := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"one"})
	if _, ok, err := m.AuthenticateToken(one, "token"); !ok {
		t.Fatal(err)
	}
	away = true
	if _, ok, err := m.AuthenticateToken(one, "token"); !ok {
		t.Errorf("the same audience: %v", err)
	}
	if _, ok, _ := m.AuthenticateToken(authenticator.WithAudiences(t.Context(), authenticator.Audiences{"two"}), "token"); ok {
		t.Error("a token for one audience is valid for another")
	}
}

// TestStaleTokensAreBoundedInBytes: users with very long names are not cached.
func TestStaleTokensAreBoundedInBytes(t *testing.T) {
	name := "robot"
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{
			Name: name, Groups: []string{name}, Extra: map[string][]string{name: {name}},
		}}, true, nil
	})
	m := newStaleTokens(core, time.Hour, clocktesting.NewFakeClock(time.Now())).(*staleTokens)
	for i, name1 := range []string{"robot", strings.Repeat("x", maxStaleUserBytes/4+1)} {
		name = name1
		if _, ok, err := m.AuthenticateToken(t.Context(), fmt.Sprint("token", i)); !ok {
			t.Fatal(err)
		}
	}
	if n := len(m.accepted.Keys()); n != 1 {
		t.Errorf("%d users are cached, want 1", n)
	}
}

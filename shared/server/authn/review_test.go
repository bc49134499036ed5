package authn

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"

	"triune.dev/shared/process/pki"
)

func jwt(expires time.Time) string {
	payload := fmt.Sprintf(`{"exp":%d}`, expires.Unix())
	return "header." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".signature"
}

// TestMemory: what a token that was good is worth while core is away.
func TestMemory(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	const limit = 10 * time.Minute
	away, bad := apierrors.NewServiceUnavailable("away"), errors.New("invalid bearer token")
	broken, busy := apierrors.NewInternalError(errors.New("broken")), apierrors.NewTooManyRequests("busy", 1)
	// What core says of this tier, not of the token: no reason to believe an old answer.
	refused, distrusted := apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", nil), apierrors.NewUnauthorized("Unauthorized")
	type step struct {
		after time.Duration
		err   error // of core
		want  bool
	}
	tests := map[string]struct {
		token string
		steps []step
	}{
		"away for a moment":         {"opaque", []step{{0, nil, true}, {time.Minute, away, true}, {time.Minute, away, true}}},
		"away for too long":         {"opaque", []step{{0, nil, true}, {limit - 1, away, true}, {2, away, false}}},
		"never good":                {"opaque", []step{{0, away, false}, {time.Second, nil, true}, {time.Second, away, true}}},
		"taken back":                {"opaque", []step{{0, nil, true}, {time.Second, bad, false}, {time.Second, away, false}}},
		"good again":                {"opaque", []step{{0, nil, true}, {limit, nil, true}, {limit - 1, away, true}}},
		"expires in the meantime":   {jwt(start.Add(time.Minute)), []step{{0, nil, true}, {time.Minute - 1, away, true}, {1, away, false}}},
		"expires later":             {jwt(start.Add(time.Hour)), []step{{0, nil, true}, {time.Minute, away, true}}},
		"broken":                    {"opaque", []step{{0, nil, true}, {time.Minute, broken, true}}},
		"busy":                      {"opaque", []step{{0, nil, true}, {time.Minute, busy, true}}},
		"refused":                   {"opaque", []step{{0, nil, true}, {time.Second, refused, false}, {time.Second, away, false}}},
		"distrusted":                {"opaque", []step{{0, nil, true}, {time.Second, distrusted, false}, {time.Second, away, false}}},
		"looks like a JWT, is none": {"a.b.c", []step{{0, nil, true}, {time.Minute, away, true}}},
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
			m := newMemory(core, limit, clock)
			for i, step := range test.steps {
				clock.Step(step.after)
				err = step.err
				response, ok, got := m.AuthenticateToken(t.Context(), test.token)
				if ok != step.want {
					t.Fatalf("step %d: good: %t (%v), want %t", i, ok, got, step.want)
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

func TestMemoryKeepsAudiencesApart(t *testing.T) {
	away := false
	core := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
		if away {
			return nil, false, apierrors.NewServiceUnavailable("away")
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "robot"}}, true, nil
	})
	m := newMemory(core, time.Hour, clocktesting.NewFakeClock(time.Now()))
	one := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"one"})
	if _, ok, err := m.AuthenticateToken(one, "token"); !ok {
		t.Fatal(err)
	}
	away = true
	if _, ok, err := m.AuthenticateToken(one, "token"); !ok {
		t.Errorf("the same audience: %v", err)
	}
	if _, ok, _ := m.AuthenticateToken(authenticator.WithAudiences(t.Context(), authenticator.Audiences{"two"}), "token"); ok {
		t.Error("a token for one audience is good for another")
	}
}

// TestOutage is the whole way: core goes away, and its old answers with it.
func TestOutage(t *testing.T) {
	header := http.Header{"Authorization": {"Bearer " + serviceAccountToken}}
	tests := map[string]struct {
		staleness time.Duration
		answer    int32 // of core
		want      int
	}{
		"believed for a while": {time.Hour, http.StatusServiceUnavailable, http.StatusOK},
		"not believed":         {0, http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		// The token may be good: 401 would have a client throw it away.
		"core does not let us ask": {time.Hour, http.StatusForbidden, http.StatusServiceUnavailable},
		"core does not believe us": {time.Hour, http.StatusUnauthorized, http.StatusServiceUnavailable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.ReviewCacheTTL = 0; o.MaxStaleness = test.staleness })
			if got := f.ask(t, pki.Pair{}, header); got.Status != http.StatusOK {
				t.Fatalf("before: %+v", got)
			}
			f.down.Store(test.answer)
			if got := f.ask(t, pki.Pair{}, header); got.Status != test.want {
				t.Errorf("during: %+v, want %d", got, test.want)
			}
			// Who needs no core is not concerned.
			if got := f.ask(t, f.pki.Clients["alice"], nil); got.Status != http.StatusOK {
				t.Errorf("a certificate: %+v", got)
			}
			if got := f.ask(t, pki.Pair{}, http.Header{"Authorization": {"Bearer " + staticToken}}); got.Status != http.StatusOK {
				t.Errorf("a static token: %+v", got)
			}
		})
	}
}

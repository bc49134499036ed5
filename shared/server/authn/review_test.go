package authn

import (
	"net/http"
	"testing"
	"time"

	"triune.dev/shared/process/pki"
)

// TestOutage checks the answers to requests while core is not available.
func TestOutage(t *testing.T) {
	header := http.Header{"Authorization": {"Bearer " + serviceAccountToken}}
	tests := map[string]struct {
		staleness time.Duration
		core      int32 // status of its answers
		want      int
	}{
		"stale token":     {time.Hour, http.StatusServiceUnavailable, http.StatusOK},
		"no stale tokens": {0, http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		// The token may be valid: after 401 a client would discard it.
		"core does not authorize the review":  {time.Hour, http.StatusForbidden, http.StatusServiceUnavailable},
		"core does not authenticate the tier": {time.Hour, http.StatusUnauthorized, http.StatusServiceUnavailable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.ReviewCacheTTL = 0; o.MaxStaleness = test.staleness })
			if got := f.ask(t, pki.Pair{}, header); got.Status != http.StatusOK {
				t.Fatalf("before: %+v", got)
			}
			f.down.Store(test.core)
			if got := f.ask(t, pki.Pair{}, header); got.Status != test.want {
				t.Errorf("during: %+v, want %d", got, test.want)
			}
			// Other credentials need no core.
			if got := f.ask(t, f.pki.Clients["alice"], nil); got.Status != http.StatusOK {
				t.Errorf("a certificate: %+v", got)
			}
			if got := f.ask(t, pki.Pair{}, http.Header{"Authorization": {"Bearer " + staticToken}}); got.Status != http.StatusOK {
				t.Errorf("a static token: %+v", got)
			}
		})
	}
}

// TestReviewsAreCached: a valid token is reviewed once and stays valid while it is cached,
// also without core. An outage is not cached.
func TestReviewsAreCached(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.ReviewCacheTTL = time.Hour })
	header := http.Header{"Authorization": {"Bearer " + serviceAccountToken}}
	for range 3 {
		if got := f.ask(t, pki.Pair{}, header); got.Status != http.StatusOK {
			t.Fatalf("got %+v, want 200", got)
		}
	}
	if got := f.reviews.Load(); got != 1 {
		t.Errorf("core was asked %d times, want once", got)
	}
	f.down.Store(http.StatusServiceUnavailable)
	if got := f.ask(t, pki.Pair{}, header); got.Status != http.StatusOK {
		t.Errorf("with core down: got %+v, want the cached answer", got)
	}
	unknown := http.Header{"Authorization": {"Bearer another"}}
	begin := time.Now()
	if got := f.ask(t, pki.Pair{}, unknown); got.Status != http.StatusServiceUnavailable {
		t.Errorf("an unknown token with core down: got %+v, want 503", got)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the answer took %s: it must not wait for core's Retry-After", took)
	}
	f.down.Store(0)
	f.reviews.Store(0)
	if got := f.ask(t, pki.Pair{}, unknown); got.Status != http.StatusUnauthorized || f.reviews.Load() == 0 {
		t.Errorf("got %+v after %d reviews, want 401 after another review, because an outage is not cached", got, f.reviews.Load())
	}
}

package loopback_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"triune.dev/shared/transport/loopback"
)

// TestDelay: a request waits for the server, at most until the limit, and no longer than its
// context lasts.
func TestDelay(t *testing.T) {
	tests := []struct {
		name                   string
		readyAt, limit, giveUp time.Duration
		want                   time.Duration
		err                    error
	}{
		{"ready before", 0, time.Minute, time.Hour, 0, nil},
		{"ready later", time.Second, time.Minute, time.Hour, time.Second, nil},
		{"ready after the limit", time.Hour, time.Minute, 2 * time.Hour, time.Minute, loopback.ErrNotServing},
		{"ready later, without a limit", time.Hour, 0, 2 * time.Hour, time.Hour, nil},
		{"given up", time.Hour, 0, time.Second, time.Second, context.DeadlineExceeded},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ready := make(chan struct{})
				handler := func() http.Handler {
					select {
					case <-ready:
						return http.NotFoundHandler()
					default:
						return nil
					}
				}
				if test.readyAt == 0 {
					close(ready)
				} else {
					time.AfterFunc(test.readyAt, func() { close(ready) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), test.giveUp)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+loopback.Host, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				res, err := loopback.Delay(ready, test.limit)(loopback.New(handler)).RoundTrip(req)
				if res != nil {
					_ = res.Body.Close()
				}
				if got := time.Since(start); got != test.want || !errors.Is(err, test.err) {
					t.Errorf("returned %v after %s, want %v after %s", err, got, test.err, test.want)
				}
				time.Sleep(test.readyAt) // the timer closes ready before the bubble ends
			})
		})
	}
}

package loopback_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/net"
)

func TestClientGoingAwayEndsTheHandler(t *testing.T) {
	leave := map[string]func(cancel context.CancelFunc, res *http.Response){
		"context cancelled":    func(cancel context.CancelFunc, _ *http.Response) { cancel() },
		"response body closed": func(_ context.CancelFunc, res *http.Response) { _ = res.Body.Close() },
	}
	wait := map[string]func(w http.ResponseWriter, r *http.Request) error{
		"waiting for its context": func(_ http.ResponseWriter, r *http.Request) error { <-r.Context().Done(); return r.Context().Err() },
		"waiting for CloseNotify": func(w http.ResponseWriter, _ *http.Request) error {
			<-w.(http.CloseNotifier).CloseNotify() //nolint:staticcheck // The API server's wrappers use it.
			return context.Canceled
		},
		"writing without end": func(w http.ResponseWriter, _ *http.Request) error {
			for {
				if _, err := w.Write(make([]byte, 1000)); err != nil {
					return err
				}
			}
		},
		"writing more than fits": func(w http.ResponseWriter, _ *http.Request) error {
			_, err := w.Write(make([]byte, 1<<20))
			return err
		},
		"reading the body": func(_ http.ResponseWriter, r *http.Request) error {
			_, err := io.Copy(io.Discard, r.Body)
			return err
		},
	}
	for how, leave := range leave {
		for what, wait := range wait {
			t.Run(what+", "+how, func(t *testing.T) {
				ended := make(chan error, 1)
				c := clientOf(func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					ended <- wait(w, r)
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				body, feed := io.Pipe()
				defer feed.Close()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://x/", body)
				if err != nil {
					t.Fatal(err)
				}
				res, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				leave(cancel, res)
				if err := <-ended; err == nil {
					t.Error("the handler noticed nothing")
				}
			})
		}
	}
}

func TestCancellingBeforeTheHeader(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan struct{})
	c := clientOf(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := c.Do(req); !errors.Is(err, context.Canceled) {
		res.Body.Close()
		t.Errorf("error %v", err)
	}
	<-ended
}

func TestClientTimeoutHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clientOf(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		c.Timeout = time.Second
		start := time.Now()
		res, err := c.Get("https://x/")
		if err == nil {
			res.Body.Close()
			t.Fatal("no error")
		}
		if !net.IsTimeout(err) || time.Since(start) != time.Second {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
	})
}

package filters

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestWatchesEndWhenNoRequestsAreTaken: the handler of a watch sees the shutdown signal,
// and the server can wait for it.
func TestWatchesEndWhenNoRequestsAreTaken(t *testing.T) {
	x := newTier(t, nil)
	entered := make(chan struct{})
	x.serve = func(_ http.ResponseWriter, req *http.Request) {
		close(entered)
		<-request.ServerShutdownSignalFrom(req.Context()).ShuttingDown()
	}
	var wait sync.WaitGroup
	wait.Go(func() { do(x.Edge, newRequest("GET", "/api/v1/nodes?watch=true", "Authorization: ann")) })
	<-entered
	if open := x.generic.WatchRequestWaitGroup; open == nil {
		t.Fatal("no wait group")
	}
	close(x.closing)
	wait.Wait()
	before, after, err := x.generic.WatchRequestWaitGroup.Wait(func(int) (utilwaitgroup.RateLimiter, context.Context, context.CancelFunc) {
		return nil, t.Context(), func() {}
	})
	if before != 0 || after != 0 || err != nil {
		t.Errorf("watches left: %d, %d, %v", before, after, err)
	}
	// A watch that arrives after the wait is refused.
	if w := do(x.Edge, newRequest("GET", "/api/v1/nodes?watch=true", "Authorization: ann")); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("a late watch: %d %v", w.Code, w.Header())
	}
}

func TestRequestsInFlightAreWaitedFor(t *testing.T) {
	x := newTier(t, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	x.next = func(http.ResponseWriter, *http.Request) { close(entered); <-leave }
	var wait sync.WaitGroup
	wait.Go(func() { do(x.Edge, newRequest("GET", "/apis/g/v1/things", "Authorization: ann")) })
	<-entered
	waited := make(chan struct{})
	go func() { x.generic.NonLongRunningRequestWaitGroup.Wait(); close(waited) }()
	select {
	case <-waited:
		t.Fatal("did not wait for a request that is passed on")
	default:
	}
	close(leave)
	<-waited
	wait.Wait()
	if w := do(x.Edge, newRequest("GET", "/api/v1/nodes", "Authorization: ann")); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a late request: %d, want 503", w.Code)
	}
}

func TestEndWithServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing := make(chan struct{})
		watch := request.WithServerShutdownSignal(t.Context(), shutdownSignal(closing))
		ended, cancel := EndWithServer(watch)
		defer cancel()
		byCaller, cancelCaller := EndWithServer(watch)
		plain, cancelPlain := EndWithServer(t.Context())
		defer cancelPlain()

		synctest.Wait()
		if ended.Err() != nil || byCaller.Err() != nil || plain.Err() != nil {
			t.Error("ended before anything happened")
		}
		cancelCaller()
		synctest.Wait()
		if byCaller.Err() == nil || ended.Err() != nil {
			t.Error("a caller ends its own context and no other")
		}
		close(closing)
		synctest.Wait()
		if ended.Err() == nil {
			t.Error("not ended with the server")
		}
		if plain.Err() != nil {
			t.Error("a request without the signal was ended")
		}
	})
}

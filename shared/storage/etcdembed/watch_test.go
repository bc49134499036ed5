package etcdembed

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestManyWatchesEndAtOnce: the other watches of the process keep receiving events.
func TestManyWatchesEndAtOnce(t *testing.T) {
	m := start(t)
	remaining := m.Client.Watch(t.Context(), "kept")
	for round := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		var opened []clientv3.WatchChan
		for i := range 100 {
			opened = append(opened, m.Client.Watch(ctx, fmt.Sprintf("ends-%d", i), clientv3.WithCreatedNotify()))
		}
		for _, ch := range opened {
			next(t, ch)
		}
		cancel()
		var ended sync.WaitGroup
		for _, ch := range opened {
			ended.Go(func() {
				for range ch {
				}
			})
		}
		ended.Wait()
		if _, err := m.Client.Put(t.Context(), "kept", fmt.Sprint(round)); err != nil {
			t.Fatal(err)
		}
		if got := string(next(t, remaining).Events[0].Kv.Value); got != fmt.Sprint(round) {
			t.Fatalf("round %d: got %q", round, got)
		}
	}
}

func next(t *testing.T, ch clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case resp := <-ch:
		return resp
	case <-time.After(20 * time.Second):
		t.Fatal("no response of a watch")
	}
	return clientv3.WatchResponse{}
}

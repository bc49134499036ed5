package nexttier

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestToReplica checks that a request for one replica is answered by it or by none.
func TestToReplica(t *testing.T) {
	first, second := startBackend(t, reply("first")), startBackend(t, reply("second"))
	p := startProxy(t, testConfig(urls(first, second)...))
	to := func(address string) *front {
		return startFront(t, p, func(ctx context.Context) context.Context { return ToReplica(ctx, address) })
	}
	for b, want := range map[*backend]string{first: "first", second: "second"} {
		f := to(b.address)
		for range 4 {
			if a := f.get(t, "/api/v1/pods"); a.body != want {
				t.Errorf("%s answers %d %q", want, a.code, a.body)
			}
		}
	}
	unavailable(t, to("127.0.0.1:1"), "GET")
	states := func(conditions ...string) []Replica {
		return []Replica{{Address: first.address, Condition: conditions[0]}, {Address: second.address, Condition: conditions[1]}}
	}
	if diff := cmp.Diff(states("ready", "ready"), p.Replicas()); diff != "" {
		t.Errorf("replicas (-want +got):\n%s", diff)
	}
	second.kill()
	unavailable(t, to(second.address), "GET")
	eventually(t, "the second replica is down", func() bool { return cmp.Equal(states("ready", "down"), p.Replicas()) })
}

package filters

import (
	"net/http"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// watched is priority and fairness with a number of watches interested in each write.
type watched struct {
	utilflowcontrol.Interface
	watches int
}

func (w watched) GetInterestedWatchCount(*apirequest.RequestInfo) int { return w.watches }
func (w watched) GetMaxSeats(string) uint64                           { return 10 }

// TestEstimate checks how many seats a write holds after it, and for how long.
func TestEstimate(t *testing.T) {
	for _, tc := range []struct {
		watches int
		seats   uint64
		after   time.Duration
	}{
		{0, 0, 0},
		{63, 0, 0},
		{64, 1, 5 * time.Millisecond},
		{500, 8, 5 * time.Millisecond},
		// At most ten seats, but for longer.
		{5000, 10, 79 * 5 * time.Millisecond / 10},
	} {
		g := &genericapiserver.Config{FlowControl: watched{watches: tc.watches}, StorageObjectCountTracker: flowcontrolrequest.NewStorageObjectCountTracker()}
		req := received(apirequest.WithRequestInfo(t.Context(), &apirequest.RequestInfo{IsResourceRequest: true, Verb: "update", APIVersion: "v1", Resource: "pods"}), onePod, "")
		req.Method = http.MethodPut
		got := estimator(g)(req, "schema", "level")
		want := flowcontrolrequest.WorkEstimate{InitialSeats: 1, FinalSeats: tc.seats, AdditionalLatency: tc.after}
		if got != want {
			t.Errorf("%d watches: %+v, want %+v", tc.watches, got, want)
		}
	}
}

package configmaps

import (
	"context"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/faults/history"
)

// run exercises a server until enough requests were sent, and returns the checker's result.
func run(t *testing.T, f faults, stale bool) (*history.History, error) {
	t.Helper()
	server := startServer(t, f)
	h := history.New()
	var clients []*Client
	for i := range 5 {
		clients = append(clients, &Client{
			HTTP: server.Client(), URLs: []string{server.URL}, Namespace: "test", Timeout: 10 * time.Second,
			Stale: stale && i == 0,
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for h.Len() < 1500 && ctx.Err() == nil {
			<-tick.C
		}
		cancel()
	}()
	if err := Exercise(ctx, h, 1, clients); err != nil {
		t.Fatal(err)
	}
	return h, h.Check(20*time.Second, "")
}

func TestCorrectServersAreAccepted(t *testing.T) {
	for name, f := range map[string]faults{
		"every answer arrives":        {},
		"answers are lost":            {breakAnswers: 20},
		"a lagging cache nobody asks": {lag: 5},
		"broken writes happen later":  {breakAnswers: 40, lateWrites: true},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := run(t, f, false)
			if err != nil {
				t.Fatal(err)
			}
			if f.breakAnswers > 0 && h.Unknown() == 0 {
				t.Error("no answer was lost")
			}
		})
	}
}

func TestWrongServersAreFound(t *testing.T) {
	for name, test := range map[string]struct {
		faults faults
		stale  bool
	}{
		"a planted stale reader":            {faults{lag: 2}, true},
		"one that is a single write behind": {faults{lag: 1}, true},
		"lists from a lagging cache":        {faults{lag: 1, staleLists: true}, false},
		"a list newer than it says":         {faults{newerThanItSays: true}, false},
		"updates without precondition":      {faults{noPreconditions: true}, false},
		"deletes that do nothing":           {faults{undeadAfter: 5}, false},
		"two writes with one revision":      {faults{sameRevision: 50}, false},
		"conflicts without a reason":        {faults{conflictsAtFault: 5}, false},
		"a stale reader among lost answers": {faults{lag: 2, breakAnswers: 40}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, test.faults, test.stale)
			if err == nil {
				t.Fatal("the history was accepted")
			}
			if !strings.Contains(err.Error(), "is not linearizable") {
				t.Error(err)
			}
			t.Logf("%.3000s", err)
		})
	}
}

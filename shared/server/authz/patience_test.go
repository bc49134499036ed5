package authz

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// A request waits for the rules if they might allow it, until the server has had time to read
// them.
func TestAwaitRules(t *testing.T) {
	const long = time.Hour
	for name, test := range map[string]struct {
		before, after authorizer.Decision
		// reads is after how many looks the rules have been read, 0 for never.
		reads    int64
		patience time.Duration
		want     authorizer.Decision
	}{
		"allowed by what is known": {before: authorizer.DecisionAllow, patience: long, want: authorizer.DecisionAllow},
		"denied by another mode":   {before: authorizer.DecisionDeny, patience: long, want: authorizer.DecisionDeny},
		"allowed by the rules":     {authorizer.DecisionNoOpinion, authorizer.DecisionAllow, 3, long, authorizer.DecisionAllow},
		"not by the rules":         {authorizer.DecisionNoOpinion, authorizer.DecisionNoOpinion, 3, long, authorizer.DecisionNoOpinion},
		"long after the start":     {before: authorizer.DecisionNoOpinion, patience: 0, want: authorizer.DecisionNoOpinion},
		"rules that do not come":   {before: authorizer.DecisionNoOpinion, patience: 20 * time.Millisecond, want: authorizer.DecisionNoOpinion},
	} {
		t.Run(name, func(t *testing.T) {
			var looks atomic.Int64
			synced := func() bool { return test.reads != 0 && looks.Add(1) >= test.reads }
			next := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				if test.reads != 0 && looks.Load() >= test.reads {
					return test.after, "", nil
				}
				return test.before, "", nil
			})
			got, _, err := awaitRules(next, synced, test.patience).Authorize(t.Context(), resource(alice, "get", "", "a", "pods"))
			if err != nil || got != test.want {
				t.Errorf("decision %v, %v, want %v", got, err, test.want)
			}
		})
	}
}

// A request that its client gives up does not wait.
func TestAwaitRulesEndsWithTheRequest(t *testing.T) {
	next := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "not known", nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, reason, err := awaitRules(next, func() bool { return false }, time.Hour).Authorize(ctx, resource(alice, "get", "", "a", "pods"))
	if got != authorizer.DecisionNoOpinion || reason != "not known" || err != nil {
		t.Errorf("decision %v %q %v", got, reason, err)
	}
}

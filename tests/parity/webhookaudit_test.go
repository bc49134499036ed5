package parity

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/cluster"
)

// TestWebhookAudit lets webhooks change, annotate, refuse and fail, and compares the audit
// events of both servers, for objects of each tier.
func TestWebhookAudit(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two more servers")
	}
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Request}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := func(tier cluster.Tier) string { return filepath.Join(dir, string(tier)) }
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	audited, err := startPeers(ctx, func(tier cluster.Tier) []string {
		return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(logs(tier), "audit.log"), "--audit-log-mode=blocking"}
	})
	t.Cleanup(func() {
		if err := closePeers(audited, t.Failed); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	site := newHookSite(t, audited)
	p := site.newPair(t)
	p.createNamespace()
	p.same(Request{Do: "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", Unchecked: true, Object: thingDefinition()})
	p.same(Request{Do: "GET /apis/${ns}.example.com/v1/namespaces/${ns}/things", Until: "ThingList"})
	does := func(name, does, policy, answer string) map[string]any {
		return map[string]any{
			"name": name, "does": does, "failurePolicy": policy,
			"for":            []any{"CREATE core/v1/configmaps", "CREATE ${ns}.example.com/v1/things", "CREATE apiregistration.k8s.io/v1/apiservices"},
			"objectSelector": map[string]any{"matchLabels": map[string]any{"case": "${ns}", "answer": answer}},
		}
	}
	site.register(p, hookCase{
		Mutating: []map[string]any{
			does("changes", "label", "Fail", "allowed"), does("annotates", "annotate-audit", "Fail", "allowed"), does("fails-m", "error", "Ignore", "allowed"),
		},
		Validating: []map[string]any{
			does("annotates-v", "annotate-audit", "Fail", "allowed"), does("fails-v", "page", "Ignore", "allowed"), does("refuses", "conflict", "Fail", "refused"),
		},
	})
	sent := map[string]Request{} // by audit ID
	for _, answer := range []string{"allowed", "refused"} {
		for i, r := range labelled(answer, map[string]any{"case": "${ns}", "answer": answer}) {
			id := fmt.Sprintf("webhooks-%s-%d", answer, i)
			sent[id] = r
			site.same(p, r.audited(id))
		}
	}
	// The last event of a request is written after its answer.
	var diff string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Second) {
		var events [2]map[string][]any
		for i, peer := range audited {
			if events[i], err = readEvents(peer, logs, sent); err != nil {
				t.Fatal(err)
			}
		}
		if diff = cmp.Diff(events[0], events[1]); diff == "" && len(events[0]) == len(sent) {
			t.Logf("%v", events[0]["webhooks-allowed-0"])
			return
		}
	}
	t.Errorf("events of %d requests; (-kube-apiserver +tested):\n%s", len(sent), limit(diff, 6000))
}

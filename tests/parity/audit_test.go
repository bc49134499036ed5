package parity

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"triune.dev/tests/cluster"
)

// auditPolicy has every level, omitted stages, and rules by everything that a rule can
// name. The requests of the cases are spread over them.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  users: [system:kube-controller-manager]
- level: None
  verbs: [list]
  resources: [{group: "", resources: [services]}]
- level: Metadata
  resources: [{group: "", resources: [secrets, serviceaccounts/token]}, {group: authentication.k8s.io}]
- level: RequestResponse
  omitManagedFields: true
  resources: [{group: apps}, {group: batch}]
- level: Request
  omitStages: [RequestReceived]
  resources: [{group: "", resources: ["pods", "pods/*", "*/scale"]}]
- level: Request
  namespaces: [default]
- level: Metadata
  userGroups: [system:unauthenticated]
- level: Metadata
  omitStages: [RequestReceived, ResponseComplete]
  resources: [{group: "", resources: [namespaces], resourceNames: [default]}]
- level: Metadata
  nonResourceURLs: [/openapi/*, /version]
- level: None
  nonResourceURLs: [/metrics*]
- level: RequestResponse
`

// TestAudit sends the requests of the written cases to two servers with an audit log and an
// audit webhook, and compares the events of each request: the same number for the same
// stages with the same content, no matter how many tiers the request crossed. Logs are
// rotated meanwhile. The webhooks, which fail now and then, get the same events in batches.
func TestAudit(t *testing.T) {
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := func(tier cluster.Tier) string { return filepath.Join(dir, string(tier)) }
	webhook := newAuditWebhook(t)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stop()
	audited, err := startPeers(ctx, func(tier cluster.Tier) []string {
		return []string{
			"--audit-policy-file=" + policy,
			"--audit-log-path=" + filepath.Join(logs(tier), "audit.log"), "--audit-log-mode=blocking", "--audit-log-maxsize=1",
			"--audit-log-truncate-enabled", "--audit-log-truncate-max-event-size=40000",
			"--audit-webhook-config-file=" + webhook.kubeconfig(t, dir, tier),
			"--audit-webhook-batch-max-size=20", "--audit-webhook-batch-max-wait=200ms", "--audit-webhook-initial-backoff=10ms",
			"--audit-webhook-batch-throttle-enable=false", "--audit-webhook-batch-buffer-size=100000",
			"--audit-webhook-truncate-enabled", "--audit-webhook-truncate-max-event-size=40000",
		}
	})
	defer func() {
		if err := closePeers(audited, t.Failed); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	files, err := LoadCases("testdata")
	if err != nil {
		t.Fatal(err)
	}
	sent := map[string]Request{} // by audit ID
	t.Run("requests", func(t *testing.T) {
		for _, file := range slices.Sorted(maps.Keys(files)) {
			for i, c := range files[file] {
				if testing.Short() && i%8 != 0 {
					continue
				}
				steps := make([]Request, len(c.Steps))
				for j, r := range c.Steps {
					id := cmp.Or(r.Headers["Audit-Id"], fmt.Sprintf("%s-%d-%d", strings.TrimSuffix(file, ".yaml"), i, j))
					steps[j] = r.audited(id)
					if r.Until == "" { // otherwise it is sent an unknown number of times
						sent[id] = r
					}
				}
				t.Run(file+" "+c.Name, func(t *testing.T) {
					t.Parallel()
					pair := newPairOf(t, audited)
					if c.usesNamespace() {
						pair.createNamespace()
					}
					for _, r := range steps {
						pair.send(r)
					}
				})
			}
		}
	})
	if len(sent) == 0 {
		t.Fatal("no request was sent")
	}
	// The last event of a request may be written after its answer.
	var differences map[string]string
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Second) {
		want, err := readEvents(audited[0], logs, sent)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readEvents(audited[1], logs, sent)
		if err != nil {
			t.Fatal(err)
		}
		differences = map[string]string{}
		for id := range sent {
			if diff := gocmp.Diff(want[id], got[id]); diff != "" {
				differences[id] = diff
			}
		}
		if len(differences) == 0 {
			t.Logf("%d requests, %d of them with events", len(sent), len(want))
			break
		}
		if time.Now().After(deadline) {
			break
		}
	}
	for _, peer := range audited {
		for _, tier := range peer.Cluster.ServingTiers() {
			webhook.compare(t, tier, logs(tier))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(differences)) {
		t.Errorf("%s %s (-kube-apiserver +tested):\n%s", id, sent[id].Do, limit(differences[id], 3000))
	}
}

// audited returns the request with an audit ID that identifies its events.
func (r Request) audited(id string) Request {
	headers := maps.Clone(r.Headers)
	if headers == nil {
		headers = map[string]string{}
	}
	headers["Audit-Id"] = id
	r.Headers = headers
	return r
}

// send sends a request to both servers and ignores the answers.
func (p *pair) send(r Request) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), requestTimeout)
	defer cancel()
	for i, vars := range []map[string]string{p.reference, p.tested} {
		if _, err := sendUntil(ctx, p.peers[i], r, vars); err != nil {
			p.t.Fatalf("%s: %v", r.Do, err)
		}
	}
}

// readEvents reads the normalised events of requests from the logs of all tiers. The events
// of a request are ordered by stage.
func readEvents(peer *Peer, logs func(cluster.Tier) string, sent map[string]Request) (map[string][]any, error) {
	lines := map[string][][]byte{}
	for _, tier := range peer.Cluster.ServingTiers() {
		written, err := readLogs(logs(tier))
		if err != nil {
			return nil, err
		}
		for _, line := range written {
			var event struct {
				AuditID string `json:"auditID"`
			}
			if err := json.Unmarshal(line, &event); err != nil {
				return nil, fmt.Errorf("event of %s: %w: %s", tier, err, line)
			}
			if _, ok := sent[event.AuditID]; ok {
				lines[event.AuditID] = append(lines[event.AuditID], line)
			}
		}
	}
	events := map[string][]any{}
	for id, of := range lines {
		n := peer.normaliser()
		for _, path := range sent[id].Volatile {
			n.Volatile = append(n.Volatile, "requestObject."+path, "responseObject."+path, "responseStatus."+path)
		}
		slices.SortStableFunc(of, func(a, b []byte) int { return cmp.Compare(stageOf(a), stageOf(b)) })
		for _, line := range of {
			event, err := n.JSON(line)
			if err != nil {
				return nil, err
			}
			events[id] = append(events[id], comparableEvent(peer, n, event))
		}
	}
	return events, nil
}

// readLogs returns the complete lines of all logs of a directory, rotated ones first.
func readLogs(dir string) (lines [][]byte, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(content) {
			if line, whole := bytes.CutSuffix(line, []byte("\n")); whole { // otherwise it is still being written
				lines = append(lines, line)
			}
		}
	}
	return lines, nil
}

// stageOf returns the position of an event's stage.
func stageOf(line []byte) int {
	var event struct {
		Stage string `json:"stage"`
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return -1
	}
	return slices.Index([]string{"RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"}, event.Stage)
}

var continueParameter = regexp.MustCompile(`\bcontinue=[\w-]+`)

// comparableEvent removes from an event what depends on more than its request, and the
// differences that docs/divergences.md allows.
func comparableEvent(peer *Peer, n *Normaliser, event any) any {
	object, _ := event.(map[string]any)
	if peer.Cluster.Config.Topology == cluster.KubeAPIServer && *target == string(cluster.Tiers) {
		trusting(Normal{Body: object["responseObject"]})
	}
	if uri, ok := object["requestURI"].(string); ok {
		object["requestURI"] = continueParameter.ReplaceAllStringFunc(uri, func(parameter string) string {
			return "continue=" + n.continueToken(strings.TrimPrefix(parameter, "continue="))
		})
	}
	// A slow request has annotations about its latency.
	annotations, _ := object["annotations"].(map[string]any)
	maps.DeleteFunc(annotations, func(name string, _ any) bool { return strings.HasPrefix(name, "apiserver.latency.k8s.io/") })
	// The kind of impersonation that is tried first depends on the user's previous
	// requests.
	if metadata, _ := object["authenticationMetadata"].(map[string]any); metadata != nil {
		delete(metadata, "impersonationConstraint")
		if len(metadata) == 0 {
			delete(object, "authenticationMetadata")
		}
	}
	status, _ := object["responseStatus"].(map[string]any)
	if message, ok := status["message"]; status["code"] == json.Number("404") && (!ok || message == unknownPathMessage) {
		object["responseStatus"] = "404"
		delete(object, "responseObject")
	}
	return event
}

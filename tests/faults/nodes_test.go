package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted, ResponseComplete]
rules:
- level: Metadata
  verbs: [list, watch]
  resources: [{group: "", resources: [nodes, pods]}]
- level: None
`

// youngWatch is more than the second within which client-go takes the end of a watch for an
// error, and lists.
const youngWatch = 3 * time.Second

const fleet = `apiVersion: apps/v1
kind: Deployment
metadata: {name: fleet}
spec:
  replicas: %d
  selector: {matchLabels: {app: fleet}}
  template: {metadata: {labels: {app: fleet}}, spec: {containers: [{name: main, image: none}]}}
`

// TestNodesSurviveRestarts restarts each server under nodes of kwok with a Pod each, and under
// the controllers and the scheduler. The Pods remain, the components work again soon, and they
// resume their watches instead of listing nodes and Pods again.
func TestNodesSurviveRestarts(t *testing.T) {
	nodes := size(50, 200)
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	config := cluster.Config{Topology: cluster.Topology(*target), Replicas: *replicas, ExternalEtcd: true, ExternalNATS: true, Flags: map[cluster.Tier][]string{}}
	// Tiers must have the same policy.
	log := func(tier cluster.Tier) string { return filepath.Join(dir, string(tier)+".log") }
	serving := (&cluster.Cluster{Config: config}).ServingTiers()
	for _, tier := range serving {
		config.Flags[tier] = []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log(tier)}
	}
	// Nodes and Pods are core's.
	owner := serving[0]
	if config.Topology == cluster.Tiers {
		owner = cluster.Core
	}
	c := cluster.Run(t, config)
	for _, start := range []func() (*cluster.Process, error){
		func() (*cluster.Process, error) { return c.StartControllerManager(t.Context()) },
		func() (*cluster.Process, error) { return c.StartScheduler(t.Context()) },
		func() (*cluster.Process, error) { return c.StartKwok(t.Context()) },
	} {
		if _, err := start(); err != nil {
			t.Fatal(err)
		}
	}
	k := cli.Kubectl(t, c.Kubeconfig, "default")
	var manifest strings.Builder
	for i := range nodes {
		fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-%d, annotations: {kwok.x-k8s.io/node: fake}}\n", i)
	}
	k.Stdin(manifest.String()).Run("create", "-f", "-")
	k.Stdin(fmt.Sprintf(fleet, nodes)).Run("create", "-f", "-")
	ready := func(n int) {
		t.Helper()
		k.Eventually(2*time.Minute, fmt.Sprintf("%d", n), "get", "deployment", "fleet", "-o", "jsonpath={.status.readyReplicas}")
	}
	ready(nodes)
	pods := func() []string {
		list := strings.Fields(k.Run("get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.uid}/{.status.containerStatuses[0].restartCount} {end}`))
		slices.Sort(list)
		return list
	}
	awaitStream(t, c, client(t, c))
	before := pods()
	for i, tier := range c.ServingTiers() {
		pause(t.Context(), youngWatch)
		stopAsking := askPermission(t, c)
		killed := time.Now()
		// All at once: a watch that moves to a replica which is killed next is too young.
		var killing sync.WaitGroup
		for replica := 0; c.Process(tier, replica) != nil; replica++ {
			killing.Go(func() { c.Kill(tier, replica) })
		}
		killing.Wait()
		for replica := 0; c.Process(tier, replica) != nil; replica++ {
			if err := c.StartReplica(t.Context(), tier, replica); err != nil {
				t.Fatal(err)
			}
		}
		up := time.Now()
		// A Pod more needs the Deployment's controllers, the scheduler and its node.
		k.Run("scale", "deployment/fleet", fmt.Sprintf("--replicas=%d", nodes+i+1))
		ready(nodes + i + 1)
		t.Logf("%s was away for %v; a further Pod was ready %v later", tier, up.Sub(killed).Round(time.Millisecond), time.Since(up).Round(time.Millisecond))
		stopAsking()
		if lists := listsSince(t, log(owner), killed); len(lists) > 0 {
			t.Errorf("after the restart of %s, listed again: %s", tier, strings.Join(lists, ", "))
		}
	}
	after := pods()
	for _, pod := range before {
		if !slices.Contains(after, pod) {
			t.Errorf("Pod %s is gone or was restarted", pod)
		}
	}
}

// askPermission lists Namespaces as the scheduler may, again and again, until stop is called. A
// server may be away, but it must not forbid what rules allow that it has not read yet.
func askPermission(t *testing.T, c *cluster.Cluster) (stop func()) {
	t.Helper()
	admin := client(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	answers := map[int]int{}
	asking.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/api/v1/namespaces?limit=1", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Impersonate-User", "system:kube-scheduler")
			if res, err := admin.Do(req); err == nil {
				_ = res.Body.Close()
				answers[res.StatusCode]++
			}
		}
	})
	return func() {
		t.Helper()
		cancel()
		asking.Wait()
		if answers[http.StatusOK] == 0 || answers[http.StatusForbidden] != 0 {
			t.Errorf("answers to the scheduler: %v", answers)
		}
	}
}

// listsSince returns which components have listed all nodes or Pods since a time, by the audit
// log of core. Servers list for their own caches when they start.
func listsSince(t *testing.T, log string, since time.Time) []string {
	t.Helper()
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			RequestReceivedTimestamp    time.Time
			Verb, RequestURI, UserAgent string
			User                        struct{ Username string }
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		who := event.User.Username
		// A watch may begin with a list.
		if event.Verb == "watch" && !strings.Contains(event.RequestURI, "sendInitialEvents=true") {
			continue
		}
		if event.RequestReceivedTimestamp.Before(since) || who == "system:apiserver" || strings.HasPrefix(who, "system:triune:") || strings.HasPrefix(event.UserAgent, "kubectl") {
			continue
		}
		found = append(found, fmt.Sprintf("%s by %s (%s)", event.RequestURI, who, event.UserAgent))
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

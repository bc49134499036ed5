package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"triune.dev/shared/program/inspect"
	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// TestInspect checks that `triune inspect` finds every process, says the same as kubectl about
// what is stored, and tells of a replica that is down.
func TestInspect(t *testing.T) {
	needs(t)
	config := targetConfig()
	if config.Topology == cluster.KubeAPIServer {
		t.Skip("kube-apiserver has no tiers")
	}
	c := cluster.Run(t, config)
	k := newKubectl(t, c, newNamespace(t, c))
	for i := range 3 {
		k.Run("create", "configmap", fmt.Sprint("c", i))
	}
	stored := strings.Count(k.Run("get", "configmaps", "-A", "-o", "name"), "\n")
	path, err := tools.Binary("triune")
	if err != nil {
		t.Fatal(err)
	}
	triune := cli.Command{T: t, Path: path, Args: []string{"inspect"}, Env: k.Env}

	eventually(t, patience, func(context.Context) error {
		r := report(t, triune)
		want := map[string]int{"triune": 1}
		if config.Topology == cluster.Tiers {
			want = map[string]int{"aggregator": 1, "core": config.Replicas, "extensions": config.Replicas}
		}
		relays, maps, fromNATS := 0, int64(0), 0
		for _, p := range r.Processes {
			want[p.Tier]--
			if p.Error != "" || p.ResidentBytes < 10<<20 || p.Release != "v1.36.3" || p.Started.IsZero() || len(p.Feeds) == 0 {
				return fmt.Errorf("a process is described as %+v", p)
			}
			if p.Relays {
				relays++
			}
			for _, feed := range p.Feeds {
				if feed.Source == "nats" && feed.Revision > 0 {
					fromNATS++
				}
			}
			for _, resource := range p.Resources {
				if resource.Name == "configmaps" {
					maps = max(maps, resource.Objects)
				}
			}
		}
		for tier, missing := range want {
			if missing != 0 {
				return fmt.Errorf("%d processes of %q are missing: %+v", missing, tier, r.Processes)
			}
		}
		if relays != 1 || maps != int64(stored) || fromNATS == 0 {
			return fmt.Errorf("%d relays, %d of %d config maps, %d feeds from NATS", relays, maps, stored, fromNATS)
		}
		return nil
	})
	triune.Says([]string{"TIER", "EVENTS FROM", "The event log is published by", "configmaps"})
	triune.With("KUBECONFIG=" + writeFile(t, "nobody", strings.ReplaceAll(anonymousKubeconfig, "SERVER", c.URL))).Fails("forbidden")
	triune.Fails("--output=xml", "--output=xml")
	if config.Topology == cluster.Tiers {
		// Impersonating a user who may get /triune/next/ must not add the impersonator's rights.
		k.Run("create", "clusterrole", "looker", "--verb=get", "--non-resource-url=/triune/next/*")
		k.Run("create", "clusterrolebinding", "looker", "--clusterrole=looker", "--user=looker")
		address := ""
		for _, p := range report(t, triune).Processes {
			if p.Tier == "core" {
				address = p.Address
			}
		}
		path := "/triune/next/" + address + "/metrics"
		eventually(t, patience, func(context.Context) error {
			if o := k.Try("get", "--raw", path, "--as=looker"); o.Code == 0 || !strings.Contains(o.Stderr, "must not impersonate") {
				return fmt.Errorf("%s as looker: %+v", path, o)
			}
			return nil
		})
	}

	if config.Topology != cluster.Tiers || config.Replicas < 2 {
		return
	}
	c.Kill(cluster.Core, 0)
	eventually(t, patience, func(context.Context) error {
		down, relays := 0, 0
		for _, p := range report(t, triune).Processes {
			if p.Condition == "down" && p.Error != "" {
				down++
			}
			if p.Relays {
				relays++
			}
		}
		if down != 1 || relays != 1 {
			return fmt.Errorf("%d replicas are down, and %d relays", down, relays)
		}
		return nil
	})
}

const anonymousKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "SERVER", insecure-skip-tls-verify: true}}]
contexts: [{name: c, context: {cluster: c, user: ""}}]
current-context: c
`

func report(t *testing.T, triune cli.Command) inspect.Report {
	t.Helper()
	var r inspect.Report
	if err := json.Unmarshal([]byte(triune.Run("--output=json")), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

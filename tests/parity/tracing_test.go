package parity

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"triune.dev/tests/cluster"
	"triune.dev/tests/otlp"
)

// TestTracing compares the spans of a request, which are one trace no matter how many tiers it
// crosses: their names and attributes, and which one is within which. A member of system:masters
// may continue a trace; for everybody else the server begins one that is linked to it.
func TestTracing(t *testing.T) {
	var collectors [2]*otlp.Collector
	dir := t.TempDir()
	for i := range collectors {
		var err error
		if collectors[i], err = otlp.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(collectors[i].Stop)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stop()
	file := func(i int) string { return filepath.Join(dir, fmt.Sprint(i, ".yaml")) }
	for i, c := range collectors {
		config := "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: " + c.Address + "\nsamplingRatePerMillion: 1000000\n"
		if err := os.WriteFile(file(i), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	traced, err := startPeers(ctx, func(tier cluster.Tier) []string {
		if tier == cluster.Tier(cluster.KubeAPIServer) {
			return []string{"--tracing-config-file=" + file(0)}
		}
		return []string{"--tracing-config-file=" + file(1)}
	})
	defer func() {
		if err := closePeers(traced, t.Failed); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	p := newPairOf(t, traced)
	p.createNamespace()
	p.same(Request{Do: "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", Unchecked: true, Object: thingDefinition()})
	p.same(Request{Do: "GET /apis/${ns}.example.com/v1/namespaces/${ns}/things", Until: "ThingList"})
	sent := tracedRequests()
	for i, r := range sent {
		r = r.audited(auditOf(i))
		r.Headers["Traceparent"] = "00-" + traceOf(i) + "-00000000000000ab-01"
		p.send(r)
	}
	// Spans are exported in batches.
	var differences map[int]string
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Second) {
		want, got := collectors[0].Spans(), collectors[1].Spans()
		differences = map[int]string{}
		for i, r := range sent {
			expected := spanTree(want, r, i)
			if len(expected) == 0 {
				differences[i] = "no spans of kube-apiserver"
			}
			if diff := gocmp.Diff(expected, spanTree(got, r, i)); diff != "" {
				differences[i] = diff
			}
		}
		if len(differences) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for i, diff := range differences {
		t.Errorf("%s (-kube-apiserver +tested):\n%s", sent[i].Do, diff)
	}
	checkHops(t, traced[1].Cluster.Config.Topology, collectors[1].Spans())
}

func auditOf(i int) string { return fmt.Sprint("traced-", i) }

func traceOf(i int) string { return fmt.Sprintf("%032x", i+1) }

// tracedRequests are requests for each tier; alice may not continue traces.
func tracedRequests() []Request {
	const things, configMaps = "/apis/${ns}.example.com/v1/namespaces/${ns}/things", "/api/v1/namespaces/${ns}/configmaps"
	merge := map[string]string{"Content-Type": mergePatch}
	return []Request{
		{Do: "POST " + configMaps, Object: map[string]any{"metadata": map[string]any{"name": "a"}}},
		{Do: "GET " + configMaps + "/a"},
		{Do: "GET " + configMaps + "?limit=1"},
		{Do: "PATCH " + configMaps + "/a", Headers: merge, Body: `{"data":{"a":"b"}}`},
		{Do: "DELETE " + configMaps + "/a"},
		{Do: "GET " + configMaps + "/a"},
		{Do: "POST " + things, Object: map[string]any{"apiVersion": "${ns}.example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": "a"}}},
		{Do: "GET " + things},
		{Do: "DELETE " + things + "/a"},
		{Do: "GET /apis/apiregistration.k8s.io/v1/apiservices/v1.apps"},
		{Do: "GET /version"},
		{Do: "GET /apis/none.example.com/v1"},
		{Do: "POST " + configMaps, User: "alice", Object: map[string]any{"metadata": map[string]any{"name": "b"}}},
		{Do: "GET " + things, User: "alice"},
		// A front proxy is no tier, and may pass on what its client has sent.
		{Do: "GET /version", User: "frontend", Headers: map[string]string{
			"X-Remote-User": "alice", "X-Remote-Traceparent": "00-0af7651916cd43dd8448eb211c80319c-00000000000000cd-01",
		}},
	}
}

// spanTree returns the spans of request i, each indented below its parent, as far as every
// server must have them: without those of a cache and of its protocol with etcd, and without
// hops. A span of a server that only waits for a hop stands for what is behind it.
func spanTree(spans []otlp.Span, r Request, i int) (lines []string) {
	below := map[string][]otlp.Span{}
	var roots []otlp.Span
	for _, s := range spans {
		below[s.Parent] = append(below[s.Parent], s)
		if s.Attributes["audit-id"] == auditOf(i) && s.Kind == "SPAN_KIND_SERVER" && s.Parent == "" {
			roots = append(roots, s)
		}
		if s.Trace == traceOf(i) && s.Parent == "00000000000000ab" {
			roots = append(roots, s)
		}
	}
	var add func(spans []otlp.Span, indent string)
	add = func(spans []otlp.Span, indent string) {
		spans = slices.Clone(spans)
		slices.SortStableFunc(spans, func(a, b otlp.Span) int { return cmp.Compare(a.Name, b.Name) })
		for _, s := range spans {
			children := below[s.ID]
			if len(s.Links) > 0 {
				lines = append(lines, indent+"linked to "+strings.Join(s.Links, ","))
			}
			switch {
			case isHop(s), len(children) == 1 && isHop(children[0]):
				add(children, indent)
				continue
			case strings.HasPrefix(s.Name, "cacher."), strings.HasPrefix(s.Name, "etcdserverpb."), s.Name == "Delete etcd3",
				strings.HasPrefix(s.Name, "List(recursive="),                   // kube-apiserver fills its cache with it
				s.Name == "SerializeObject" && strings.HasPrefix(r.Do, "GET "): // bytes are served as they are
				continue
			}
			line := indent + s.Name + " " + s.Kind
			for _, key := range slices.Sorted(maps.Keys(s.Attributes)) {
				line += " " + key
				if value := s.Attributes[key]; value != "" && !slices.Contains([]string{"server.address", "protocol", "encoder"}, key) {
					line += "=" + value
				}
			}
			lines = append(lines, line)
			add(children, indent+"  ")
		}
	}
	add(roots, "")
	return lines
}

func isHop(s otlp.Span) bool {
	return s.Kind == "SPAN_KIND_CLIENT" && s.Attributes["peer.service"] != ""
}

// checkHops checks that the trace of a custom resource leads through every tier into etcd.
func checkHops(t *testing.T, topology cluster.Topology, spans []otlp.Span) {
	t.Helper()
	if topology != cluster.Tiers {
		return
	}
	byID := map[string]otlp.Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	var ways []string
	for _, s := range spans {
		if s.Name != "etcdserverpb.KV/Txn" {
			continue
		}
		way := "etcd"
		for ; s.ID != ""; s = byID[s.Parent] {
			if isHop(s) {
				way = s.Attributes["peer.service"] + " " + way
			}
		}
		ways = append(ways, way)
	}
	slices.Sort(ways)
	ways = slices.Compact(ways)
	for _, want := range []string{"core etcd", "core extensions etcd"} {
		if !slices.Contains(ways, want) {
			t.Errorf("no trace leads by way of %s, but by way of %q", want, ways)
		}
	}
}

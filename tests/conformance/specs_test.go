package conformance

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
	"triune.dev/tests/node"
	"triune.dev/tests/tools"
)

var (
	target   = flag.String("target", "triune", "the API server: triune, tiers or kube-apiserver")
	replicas = flag.Int("replicas", 1, "how many replicas each of the tiers has")
	focus    = flag.String("focus", allSpecs, "regular expression of the specs to run")
	procs    = flag.Int("procs", 6, "how many specs run at once")
	attempts = flag.Int("attempts", 2, "how often a spec is tried until it passes")
	record   = flag.Bool("record", false, "write the results to testdata, and docs/conformance.md")
)

// allSpecs are Kubernetes' conformance tests.
const allSpecs = `\[Conformance\]`

// specsLimit bounds a run of all specs.
const specsLimit = 3 * time.Hour

// TestSpecs runs Kubernetes' own end-to-end tests in a cluster with a node. Every spec passes
// but those of testdata/specs/impossible.txt, which says why.
func TestSpecs(t *testing.T) {
	if testing.Short() {
		t.Skip("a run of all specs takes 35 minutes (-short)")
	}
	impossible, err := readImpossible()
	if err != nil {
		t.Fatal(err)
	}
	c, n := startNode(t)
	report := runSpecs(t, c, n)
	results := results(report)
	if len(results) == 0 {
		t.Fatalf("no spec matches %s", *focus)
	}
	for _, r := range results {
		switch reason := impossible[r.Name]; {
		case r.Passed && reason != "":
			t.Logf("passed, although it %s: %s", reason, r.Name)
		case r.Passed && r.Attempts > 1:
			t.Logf("passed at attempt %d: %s", r.Attempts, r.Name)
		case !r.Passed && reason == "":
			t.Errorf("%s\n%s", r.Name, r.Failure)
		}
	}
	if *record {
		writeResults(t, *target, results)
	}
}

// startNode starts a cluster with one node, CoreDNS, and the images of the specs.
func startNode(t *testing.T) (*cluster.Cluster, *node.Node) {
	c, n := node.Run(t, *target, *replicas, nil)
	if err := importImages(t.Context(), n, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	n.RunDNS(t, cli.Kubectl(t, c.Kubeconfig, ""))
	return c, n
}

// spec is what Ginkgo reports of a spec.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	NumAttempts             int
	Failure                 struct{ Message string }
}

// runSpecs runs the specs and returns Ginkgo's report of them.
func runSpecs(t *testing.T, c *cluster.Cluster, n *node.Node) []spec {
	ginkgo, err := tools.Path(t.Context(), "ginkgo")
	if err != nil {
		t.Fatal(err)
	}
	program, err := tools.Path(t.Context(), "e2e.test")
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := tools.Path(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(t.Context(), specsLimit+5*time.Minute)
	defer cancel()
	// A machine with two cores is late now and then, so a spec may try again.
	cmd := exec.CommandContext(ctx, ginkgo, "run", "--procs="+strconv.Itoa(*procs), "--focus="+*focus, "--flake-attempts="+strconv.Itoa(*attempts), "--no-color",
		"--timeout="+specsLimit.String(), "--output-dir="+dir, "--json-report=report.json", program, "--",
		"--kubeconfig="+c.Kubeconfig, "--provider=skeleton", "--kubectl-path="+kubectl, "--num-nodes=1", "--disable-log-dump=true", "--kubelet-root-dir="+n.KubeletDir(), "--e2e-output-dir="+dir, "--report-dir="+dir)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	failed := cmd.Run()
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("ginkgo: %v: %v\n%s", failed, err, text[max(0, len(text)-8<<10):])
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(data, &suites); err != nil {
		t.Fatal(err)
	}
	var specs []spec
	for _, suite := range suites {
		specs = append(specs, suite.SpecReports...)
	}
	return specs
}

// result is what became of a spec.
type result struct {
	Name     string
	Passed   bool
	Attempts int
	Failure  string
}

// tags are what a name of a spec has for selection only.
var tags = regexp.MustCompile(` \[(Conformance|NodeConformance|Serial|Disruptive|Slow|LinuxOnly|Flaky)\]`)

// results returns what became of the specs that were run, in the order of their names.
func results(specs []spec) []result {
	var list []result
	for _, s := range specs {
		if s.LeafNodeType != "It" || s.State == "pending" || s.State == "skipped" && s.Failure.Message == "" {
			continue
		}
		name := strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
		list = append(list, result{Name: tags.ReplaceAllString(name, ""), Passed: s.State == "passed", Attempts: s.NumAttempts, Failure: fmt.Sprintf("%s: %s", s.State, s.Failure.Message)})
	}
	slices.SortFunc(list, func(a, b result) int { return strings.Compare(a.Name, b.Name) })
	return list
}

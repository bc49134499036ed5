package bench

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/bench/report"
)

// The page has the published figures.
func TestAttacksOfTheSecurityPageAreUpToDate(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	result, err := Files{Dir: filepath.Join(docs, "benchmarks"), Name: "attacks"}.Read()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(docs, "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := attackMarks.replace(string(page), AttacksTable(result))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(page)); diff != "" {
		t.Errorf("run `go run ./tests/cmd/bench -render -out=docs/benchmarks -name=attacks -security=docs/security.md` (-want +got):\n%s", diff)
	}
}

// Each attack is made on the real triune and has figures, and so have the rows of the
// chain, with and without audit as they say.
func TestAttacksAndChainAreMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it: it needs bin/triune and a minute")
	}
	result, err := Run(t.Context(), Options{
		Match: regexp.MustCompile("^(attack|chain)-"), Quick: true, Scale: 1, Rounds: 1,
		Subjects: []string{report.Ours}, Log: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range result.Errors() {
		t.Error(line)
	}
	found := map[string]bool{}
	for _, row := range result.Rows {
		if s, ok := row.Headline(report.Ours); ok && s.Median > 0 {
			found[row.Workload] = true
		}
	}
	want := map[string]bool{}
	for _, name := range []string{
		"attack-headers", "attack-bodies", "attack-unread", "attack-closes", "attack-namespaces", "attack-tokens",
		"chain-masters", "chain-token", "chain-certificate",
	} {
		want[name] = true
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
}

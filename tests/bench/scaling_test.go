package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/bench/report"
)

// The page has the published figures.
func TestScalingPageIsUpToDate(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	result, err := Files{Dir: filepath.Join(docs, "benchmarks"), Name: "result"}.Read()
	if err != nil {
		t.Fatal(err)
	}
	want, err := ScalingPage(result)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(docs, "scaling.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run `go run ./tests/cmd/bench -render -out=docs/benchmarks -scaling=docs/scaling.md` (-want +got):\n%s", diff)
	}
}

// A missing figure is an error, not zero.
func TestScalingPageNeedsItsFigures(t *testing.T) {
	row := &report.Row{Workload: "get-pod", Phase: "warm", Cells: map[string]*report.Cell{"tiers": {Samples: []report.Sample{{CPU: map[string]float64{"core": 1}}}}}}
	for want, result := range map[string]*report.Result{
		`no figure of tiers in "get-pod"`:                       {},
		`no processor time of aggregator of tiers in "get-pod"`: {Rows: []*report.Row{row}},
	} {
		if _, err := ScalingPage(result); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

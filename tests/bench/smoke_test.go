package bench

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"triune.dev/tests/bench/report"
)

// One read, one write and one watch are measured on the real triune and on the floor with
// the same sizes, with profiles of each.
func TestTriuneIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it: it needs bin/triune and half a minute")
	}
	profiles := t.TempDir()
	result, err := Run(t.Context(), Options{
		Match: regexp.MustCompile("^(start|create-configmap|watch-500)$"), Quick: true, Scale: 0.01, Rounds: 1,
		Subjects: []string{report.Ours, report.Floor}, Floor: self(t), Profiles: profiles, Log: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range result.Errors() {
		t.Error(line)
	}
	for _, want := range []struct{ workload, subject string }{
		{"start", report.Ours}, {"create-configmap", report.Ours}, {"create-configmap", report.Floor},
		{"watch-500", report.Ours}, {"watch-500", report.Floor},
	} {
		found := false
		for _, row := range result.Rows {
			if s, ok := row.Headline(want.subject); row.Workload == want.workload && ok {
				found = s.Median > 0
			}
		}
		if !found {
			t.Errorf("%s has no figure of %s", want.subject, want.workload)
		}
	}
	for _, workload := range []string{"create-configmap", "watch-500"} {
		for kind := range kinds {
			file := filepath.Join(profiles, report.Ours, fmt.Sprintf("%s.triune.%s.prof", workload, kind))
			top, err := topOf(t.Context(), file)
			// Delivering an event allocates so little that a profile may have no sample of
			// it.
			mayBeEmpty := kind == "alloc" && workload == "watch-500"
			if err != nil || len(top) == 0 && !mayBeEmpty {
				t.Errorf("%s of %s: %d functions, %v", kind, workload, len(top), err)
			}
		}
	}
}

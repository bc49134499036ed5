package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"triune.dev/tests/cluster"
)

// complaint matches warnings and errors of klog.
var complaint = regexp.MustCompile(`^[EWF]\d{4} \d\d:\d\d:\d\d`)

// TestQuietStart checks that the first start of a healthy server logs no warning or error:
// an operator would look for the cause.
func TestQuietStart(t *testing.T) {
	needs(t)
	if cluster.Topology(*target) == cluster.KubeAPIServer {
		return // kube-apiserver's messages are not ours to test
	}
	config := targetConfig()
	config.Replicas = 1
	c, err := cluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(c.Dir) })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, tier := range c.ServingTiers() {
		files, err := filepath.Glob(filepath.Join(c.Dir, "logs", string(tier)+"*.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			read++
			for line := range strings.Lines(string(content)) {
				if strings.Contains(line, `"shutting down"`) {
					break // the tiers end in any order, and may log it
				}
				// kube-apiserver logs this warning whenever it writes the endpoints of the
				// Service kubernetes.
				if complaint.MatchString(line) && !strings.Contains(line, "Resetting endpoints for master service") {
					t.Errorf("%s: %s", filepath.Base(file), line)
				}
			}
		}
	}
	if read == 0 {
		t.Error("no log was read")
	}
}

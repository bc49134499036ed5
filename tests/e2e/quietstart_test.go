package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"triune.dev/tests/cluster"
)

// complaint begins the lines of klog that are warnings or errors.
var complaint = regexp.MustCompile(`^[EWF]\d{4} \d\d:\d\d:\d\d`)

// TestQuietStart: who starts a server for the first time, and sees an error, looks
// for what is wrong. So there is none if nothing is.
func TestQuietStart(t *testing.T) {
	needs(t)
	if cluster.Topology(*target) == cluster.KubeAPIServer {
		return // its words are its own
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
					break // the tiers end in no order, and may say so
				}
				// kube-apiserver's words for writing the endpoints of the Service
				// kubernetes, at each change of them.
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

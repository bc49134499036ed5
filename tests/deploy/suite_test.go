package deploy

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// TestComposePassesTheSuite runs the fast half of the end-to-end suite against
// docker-compose.yml with two replicas of each tier, and checks who can read which key
// there.
func TestComposePassesTheSuite(t *testing.T) {
	full(t)
	p, _, kubeconfig := composeUp(t, nil, nil)
	checkKeys(t, p)
	// The suite runs in its own process, against a running server.
	out, err := suite(t.Context(), path(t), kubeconfig)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	passed := len(regexp.MustCompile(`(?m)^--- PASS: Test`).FindAllString(out, -1))
	for _, line := range regexp.MustCompile(`(?m)^.*not of an external server.*$`).FindAllString(out, -1) {
		t.Log(line)
	}
	// A suite that skips everything would pass, too.
	if passed < 10 {
		t.Errorf("only %d tests of the suite were run:\n%s", passed, out)
	}
	t.Logf("%d tests passed", passed)
}

// suite runs tests/e2e with go test, and returns its output even with an error.
func suite(ctx context.Context, root, kubeconfig string) (string, error) {
	command := exec.CommandContext(ctx, cmp.Or(os.Getenv("GO"), "go"), "test", "-vet=off", "-count=1", "-short", "-v", "-timeout=10m",
		"./tests/e2e", "-target=external", "-kubeconfig="+kubeconfig)
	command.Dir = root
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	return out.String(), err
}

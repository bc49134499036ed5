package readme

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"triune.dev/tests/node"
)

// TestTutorial runs the commands of docs/tutorial.md as they are written there, and compares
// what they print.
func TestTutorial(t *testing.T) {
	if lacks := node.Missing(); lacks != "" {
		if testing.Short() {
			t.Skip(lacks)
		}
		t.Fatal(lacks)
	}
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := stepsOf(string(page))
	if len(steps) < 5 || steps[0].commands != "make run-node\n" {
		t.Fatalf("the tutorial has %d steps, and begins with %q", len(steps), steps[0].commands)
	}
	m := start(t, "run-node")
	var script strings.Builder
	for i, s := range steps[1:] {
		fmt.Fprintf(&script, "%secho '== %d'\n", s.commands, i)
	}
	shell := exec.CommandContext(t.Context(), "sh", "-e", "-c", script.String())
	shell.Dir = root(t)
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Errorf("the commands: %v", err)
	}
	rest := string(out)
	for i, s := range steps[1:] {
		printed, after, all := strings.Cut(rest, fmt.Sprintf("== %d\n", i))
		if !all {
			t.Fatalf("%s\nended after\n%s", s.commands, printed)
		}
		if rest = after; !s.prints(printed) {
			t.Errorf("%s\nprints\n%s\nand the page has\n%s", s.commands, printed, s.output)
		}
	}
	m.end(t)
}

// step is a block of commands and the block of their output, if the page has one.
type step struct{ commands, output string }

// stepsOf returns the blocks marked sh, each with the block marked text that follows it.
func stepsOf(page string) []step {
	var steps []step
	parts := strings.Split(page, "```")
	for i := 1; i < len(parts); i += 2 {
		kind, content, _ := strings.Cut(parts[i], "\n")
		switch {
		case kind == "sh":
			steps = append(steps, step{commands: content})
		case kind == "text" && len(steps) > 0:
			steps[len(steps)-1].output = content
		}
	}
	return steps
}

var spaces = regexp.MustCompile(`\s+`)

// prints reports whether what was printed has all lines of the page, in their order. An
// ellipsis stands for any text in a line, and a space for any number of them.
func (s step) prints(printed string) bool {
	lines := strings.Split(printed, "\n")
	for want := range strings.Lines(s.output) {
		pattern := regexp.QuoteMeta(spaces.ReplaceAllString(strings.TrimSpace(want), " "))
		match := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "…", ".*") + "$")
		for {
			if len(lines) == 0 {
				return false
			}
			line := spaces.ReplaceAllString(strings.TrimSpace(lines[0]), " ")
			lines = lines[1:]
			if match.MatchString(line) {
				break
			}
		}
	}
	return true
}

func TestPrints(t *testing.T) {
	for output, want := range map[string]bool{
		"a\nb\n": true, "a": true, "b\n": true, "…\n": true, "": true,
		"b\na\n": false, "c\n": false, "a b\n": false,
	} {
		if got := (step{output: output}).prints("a\nb\n"); got != want {
			t.Errorf("%q: %t", output, got)
		}
	}
	if !(step{output: "NAME …AGE\n"}).prints("NAME   STATUS   AGE\n") {
		t.Error("spaces count")
	}
}

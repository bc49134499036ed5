package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"triune.dev/tests/tools"
)

var (
	flagName = regexp.MustCompile(`--[a-z][a-z0-9-]+`)
	codeSpan = regexp.MustCompile("`[^`]+`")
	// otherProgram matches a code span with a command of another project's program.
	otherProgram = regexp.MustCompile("^`(etcd|etcdutl|kubectl|make) ")
)

// TestFlagsInDocumentsExist checks that every flag that a document names is a flag of one
// of the programs. It ignores shell examples, which also run other programs.
func TestFlagsInDocumentsExist(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{
		"--help": true, "--version": true,
		"--wait": true, "--profile": true, "--scale": true, // docker compose's
		"--set": true, // helm's
	}
	for _, program := range []string{"aggregator", "core", "extensions", "triune"} {
		path, err := tools.Binary(program)
		if err != nil {
			t.Fatal(err)
		}
		help, err := exec.CommandContext(t.Context(), path, "--help").Output()
		if err != nil {
			t.Fatalf("%s --help: %v", program, err)
		}
		for _, name := range flagName.FindAllString(string(help), -1) {
			known[name] = true
		}
	}
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, decisions...)
	documents = append(documents, filepath.Join(root, "README.md"), filepath.Join(root, "ARCHITECTURE.md"))
	found := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range codeSpan.FindAllString(outsideFences(string(text)), -1) {
			if otherProgram.MatchString(span) {
				continue
			}
			for _, name := range flagName.FindAllString(span, -1) {
				found++
				if !known[name] {
					t.Errorf("%s: no program has %s (in %s)", filepath.Base(document), name, span)
				}
			}
		}
	}
	if found == 0 {
		t.Error("the documents name no flag")
	}
}

// outsideFences returns a Markdown text without its ``` blocks.
func outsideFences(text string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			b.WriteString(line)
		}
	}
	return b.String()
}

package verify

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"triune.dev/tests/tools"
)

// lastUnchecked is the last commit whose subject nobody has checked.
const lastUnchecked = "56248130f1696588b36c57a3ecda40bb00af479a"

// Subjects of commits fit into a line of git log: 72 characters.
func TestSubjectsOfCommits(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		return // sources without a history
	}
	git := func(args ...string) (string, error) {
		command := exec.Command("git", args...)
		command.Dir = root
		out, err := command.Output()
		return string(out), err
	}
	commits := "HEAD"
	if _, err := git("cat-file", "-e", lastUnchecked+"^{commit}"); err == nil { // not in a shallow clone
		commits = lastUnchecked + "..HEAD"
	}
	subjects, err := git("log", "--no-merges", "--format=%h %s", commits)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(subjects) {
		commit, subject, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n := utf8.RuneCountInString(subject); n > 72 {
			t.Errorf("%s: the subject has %d characters, 72 are the most: %s", commit, n, subject)
		}
	}
}

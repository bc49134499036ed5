package verify

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxLines = 700

// A file holds one concept; past 700 lines the concept is two.
func TestFilesAreShort(t *testing.T) {
	for _, name := range list(t, ".go") {
		if n := strings.Count(read(t, name), "\n"); n > maxLines {
			t.Errorf("%s has %d lines, more than %d", name, n, maxLines)
		}
	}
}

// elsewhere matches absolute paths of somebody's machine. The pattern is composed so that
// it does not match itself.
var elsewhere = regexp.MustCompile(`(?m)(^|[^\w.\-/*}])/(` + strings.Join([]string{"root", "work", "home", "Users"}, "|") + `)/[\w.\-]`)

// Absolute paths of the author's machine mean nothing on another.
func TestNoPathsOfThisMachine(t *testing.T) {
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text := read(t, name)
		if !utf8.ValidString(text) {
			continue // binary test data
		}
		for _, at := range elsewhere.FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: %q", name, 1+strings.Count(text[:at[0]], "\n"), strings.TrimSpace(text[at[0]:at[1]]))
		}
	}
}

func TestElsewhereFindsPaths(t *testing.T) {
	for text, want := range map[string]bool{
		"see /" + "root/go":        true,
		`"/` + "home/me/src\"":     true,
		"mountPath: /var/lib/x":    false,
		"https://example.com/work": false,
		"/" + "work":               false,
		"a/" + "root/b":            false,
	} {
		if got := elsewhere.MatchString(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// unfinished matches notes to oneself. Unfinished work belongs in issues, not in comments.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

func TestNothingIsLeftForLater(t *testing.T) {
	for _, name := range list(t, ".go", ".md", ".yaml", "Makefile", ".mk") {
		text := read(t, name)
		for _, at := range unfinished.FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: %s", name, 1+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]])
		}
	}
}

package verify

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/tools"
)

func TestLinksLeadSomewhere(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	documents := map[string]document{}
	for _, name := range list(t, ".md") {
		documents[name] = parseMarkdown(read(t, name))
	}
	for name, d := range documents {
		for _, l := range d.links {
			if strings.Contains(l.target, "://") || strings.HasPrefix(l.target, "mailto:") {
				continue // the web is not ours to check, nor always there
			}
			file, fragment, _ := strings.Cut(l.target, "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil || strings.HasPrefix(target, "..") {
				t.Errorf("%s:%d: no file %s", name, l.line, target)
			} else if other, ok := documents[target]; ok && fragment != "" && !other.anchors[fragment] {
				t.Errorf("%s:%d: no heading #%s in %s", name, l.line, fragment, target)
			}
		}
	}
}

// Every make target that a document names exists.
func TestMakeTargetsInDocumentsExist(t *testing.T) {
	makefile := makefiles(t)
	for _, name := range list(t, ".md", "Makefile", ".mk") {
		for _, l := range parseMarkdown(read(t, name)).targets {
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(l.target) + `:`).MatchString(makefile) {
				t.Errorf("%s:%d: no makefile has a target %s", name, l.line, l.target)
			}
		}
	}
}

var (
	sourcePath = regexp.MustCompile("`((?:shared|services|tests|docs|deploy)(?:/[\\w.\\-]+)*|Makefile|\\.ci/run)`")
	sourceFile = regexp.MustCompile("`([\\w\\-]+\\.go)`")
)

// Every file or directory that a document names exists.
func TestSourcesNamedInDocumentsExist(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	base := map[string]bool{}
	for _, name := range list(t, ".go") {
		base[path.Base(name)] = true
	}
	for _, name := range list(t, ".md") {
		text := read(t, name)
		for _, m := range sourcePath.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(m[1]))); err != nil {
				t.Errorf("%s: no file or directory %s", name, m[1])
			}
		}
		for _, m := range sourceFile.FindAllStringSubmatch(text, -1) {
			if !base[m[1]] {
				t.Errorf("%s: no file is called %s", name, m[1])
			}
		}
	}
}

// documentName matches names of documents in comments and messages.
var documentName = regexp.MustCompile(`\bdocs/[\w\-./]+\.md\b|\b(ARCHITECTURE|README)\.md\b`)

func TestDocumentsNamedInCodeExist(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list(t, ".go") {
		if strings.HasPrefix(name, "tests/verify/") {
			continue
		}
		for _, target := range documentName.FindAllString(read(t, name), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil {
				t.Errorf("%s: no file %s", name, target)
			}
		}
	}
}

func TestParseMarkdown(t *testing.T) {
	got := parseMarkdown("# One, `two` & three\n[a](b.md#c) and `[no](d)`\n```\n[no](e)\nmake build  # or make nothing\n```\n[ref]: f.md\nSee `make V=1 test`.\n")
	want := document{
		anchors: map[string]bool{"one-two--three": true},
		links:   []link{{2, "b.md#c"}, {7, "f.md"}},
		targets: []link{{5, "build"}, {8, "test"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(document{}, link{})); diff != "" {
		t.Error(diff)
	}
}

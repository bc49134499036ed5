package verify

import (
	"iter"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// bound is a row of the tables of docs/security.md about memory that a request can fill.
type bound struct {
	line    int
	what    string
	sources []string // links, relative to the document
	tests   []string
	// other is the reason for a missing test.
	other string
}

// boundBy has those that enforce a bound without a test here: libraries, or nobody
// ("open").
var boundBy = []string{"k8s.io/apiserver", "net/http", "nats.go", "open"}

var (
	boundsHead = "| what | where | key | bound | filled | test |"
	testName   = regexp.MustCompile("`(Test\\w+)`")
)

// rowsOf returns the rows of all tables of a document with this head, by line number.
func rowsOf(document, head string) iter.Seq2[int, []string] {
	return func(yield func(int, []string) bool) {
		inside, number := false, 0
		for line := range strings.Lines(document) {
			number++
			line = strings.TrimSpace(line)
			switch {
			case line == head:
				inside = true
				continue
			case !strings.HasPrefix(line, "|"):
				inside = false
				continue
			case !inside || strings.HasPrefix(line, "|-"):
				continue
			}
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			if !yield(number, cells) {
				return
			}
		}
	}
}

// boundsOf returns the rows of all tables of bounds. A row without all columns has no
// sources.
func boundsOf(text string) []bound {
	var found []bound
	for number, cells := range rowsOf(text, boundsHead) {
		b := bound{line: number, what: cells[0]}
		if len(cells) == 6 && cells[3] != "" && cells[4] != "" {
			for _, m := range inlineLink.FindAllStringSubmatch(cells[1], -1) {
				b.sources = append(b.sources, m[1])
			}
			for _, m := range testName.FindAllStringSubmatch(cells[5], -1) {
				b.tests = append(b.tests, m[1])
			}
			b.other = strings.TrimSpace(testName.ReplaceAllString(cells[5], ""))
		}
		found = append(found, b)
	}
	return found
}

// Every bound names tests that exist.
func TestBoundsAreTested(t *testing.T) {
	const document = "docs/security.md"
	bounds := boundsOf(read(t, document))
	if len(bounds) < 40 {
		t.Errorf("%s has %d bounds", document, len(bounds))
	}
	tests := testsByDirectory(t)
	for _, b := range bounds {
		if len(b.sources) != 1 {
			t.Errorf("%s:%d: %s: want six columns and one link to what bounds it", document, b.line, b.what)
			continue
		}
		dir := path.Join(path.Dir(document), b.sources[0])
		if path.Ext(dir) == ".go" {
			dir = path.Dir(dir)
		}
		for _, name := range b.tests {
			if !tests[dir][name] {
				t.Errorf("%s:%d: %s: %s has no %s", document, b.line, b.what, dir, name)
			}
		}
		if none := slices.Contains(boundBy, b.other); none == (len(b.tests) > 0) || !none && b.other != "" {
			t.Errorf("%s:%d: %s: want tests, or whose bound it is", document, b.line, b.what)
		}
	}
}

// testsByDirectory returns the names of all tests, by the directories of their packages.
func testsByDirectory(t *testing.T) map[string]map[string]bool {
	t.Helper()
	tests := map[string]map[string]bool{}
	for _, name := range list(t, "_test.go") {
		dir := path.Dir(name)
		if tests[dir] == nil {
			tests[dir] = map[string]bool{}
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, name), -1) {
			tests[dir][m[1]] = true
		}
	}
	return tests
}

func TestThreatsAreTested(t *testing.T) {
	const document = "docs/security.md"
	tests := map[string]bool{}
	for _, names := range testsByDirectory(t) {
		maps.Copy(tests, names)
	}
	threats := 0
	for number, cells := range rowsOf(read(t, document), "| who | tries | what becomes of it | test |") {
		threats++
		named := testName.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 4 || len(named) == 0 || slices.Contains(cells, "") {
			t.Errorf("%s:%d: want who tries what, what becomes of it, and a test", document, number)
		}
		for _, m := range named {
			if !tests[m[1]] {
				t.Errorf("%s:%d: there is no %s", document, number, m[1])
			}
		}
	}
	if threats < 25 {
		t.Errorf("%s has %d threats", document, threats)
	}
}

func TestBoundsOf(t *testing.T) {
	got := boundsOf("# Bounds\n\n" + boundsHead + "\n|---|---|---|---|---|---|\n" +
		"| a | [b](../b/c.go) | | 1 | before | `TestA` `TestB` |\n| c | [d](d) | x | none | known | open |\n| e | [f](f) |\n\n| what |\n| no |\n")
	want := []bound{
		{line: 5, what: "a", sources: []string{"../b/c.go"}, tests: []string{"TestA", "TestB"}},
		{line: 6, what: "c", sources: []string{"d"}, other: "open"},
		{line: 7, what: "e"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(bound{})); diff != "" {
		t.Error(diff)
	}
}

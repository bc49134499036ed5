package verify

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// upstreamDocument lists what upstream's constructors do.
const upstreamDocument = "docs/upstream.md"

var (
	namedLink = regexp.MustCompile(`\[([^\]]+)\]\(([^()\s]+)\)`)
	quoted    = regexp.MustCompile("`([^`]+)`")
)

// TestUpstreamIsAnsweredFor checks that every row of the tables names our counterpart, or a
// reason for having none. TestLinksLeadSomewhere checks that the files exist; this test
// checks that they contain the names in the row.
func TestUpstreamIsAnsweredFor(t *testing.T) {
	rows := 0
	for number, line := range strings.Split(read(t, upstreamDocument), "\n") {
		if !strings.HasPrefix(line, "| ") || line == "| upstream | where | here |" {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 3 {
			t.Errorf("%s:%d: %d cells", upstreamDocument, number+1, len(cells))
			continue
		}
		for _, problem := range answered(strings.TrimSpace(cells[2]), func(target string) string { return sources(t, target) }) {
			t.Errorf("%s:%d: %s", upstreamDocument, number+1, problem)
		}
	}
	if rows < 100 {
		t.Errorf("%d rows", rows)
	}
}

// answered returns the problems of the last cell of a row. text returns the sources to
// which a link leads.
func answered(cell string, text func(target string) string) (problems []string) {
	links := namedLink.FindAllStringSubmatch(cell, -1)
	if len(links) == 0 && !answersByItself.MatchString(cell) {
		problems = append(problems, "neither a link nor a reason: "+cell)
	}
	for _, l := range links {
		name, target := l[1], l[2]
		if strings.Contains(target, ".md") || strings.HasPrefix(target, "#") {
			continue
		}
		for _, q := range quoted.FindAllStringSubmatch(name, -1) {
			word := q[1]
			if strings.HasSuffix(target, word) {
				continue // the name of the file or directory itself
			}
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`).MatchString(text(target)) {
				problems = append(problems, target+" has no "+word)
			}
		}
	}
	return problems
}

// answersByItself matches cells that need no link: the same function is called, or there is
// a reason for having none.
var answersByItself = regexp.MustCompile(`^(the same( functions?| filters?)?(,|;|$)|none: \S+|nothing reads them: \S+|linked with )`)

// sources returns the text of the Go file, or of those in the directory, to which a link of
// upstreamDocument leads.
func sources(t *testing.T, target string) string {
	target = path.Join(path.Dir(upstreamDocument), target)
	var all strings.Builder
	for _, name := range list(t, ".go") {
		if name == target || path.Dir(name) == target {
			all.WriteString(read(t, name))
		}
	}
	return all.String()
}

func TestAnswered(t *testing.T) {
	text := func(target string) string {
		if target == "../shared/a.go" {
			return "func begin() {}"
		}
		return ""
	}
	for cell, problems := range map[string]int{
		"[`begin`](../shared/a.go)":                     0,
		"[`a.go`](../shared/a.go)":                      0,
		"[`begin` and `end`](../shared/a.go)":           1,
		"[`begin`](../shared/b.go)":                     1,
		"[`beg`](../shared/a.go)":                       1,
		"the same filter, where there is one":           0,
		"the same, see [divergences](divergences.md#x)": 0,
		"none: nobody needs it":                         0,
		"none:":                                         1,
		"somewhere":                                     1,
	} {
		if got := answered(cell, text); len(got) != problems {
			t.Errorf("%s: %q", cell, got)
		}
	}
}

package verify

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	vulnerabilitiesHead = "| what | published as | test | triune | go |"
	identifier          = regexp.MustCompile(`^(CVE-20\d\d-\d{4,}|GO-20\d\d-\d{4}|RUSTSEC-20\d\d-\d{4})$`)
	triedBy             = regexp.MustCompile("`((?:Test|Fuzz)\\w+)(?:/([^`]+))?`")
)

// Every listed vulnerability has a test that exists.
func TestVulnerabilitiesAreTried(t *testing.T) {
	const document, dir = "docs/http2.md", "shared/transport/h2"
	var source strings.Builder
	for _, name := range list(t, "_test.go") {
		if path.Dir(name) == dir {
			source.WriteString(read(t, name))
		}
	}
	rows := 0
	for number, cells := range rowsOf(read(t, document), vulnerabilitiesHead) {
		rows++
		if len(cells) != 5 {
			t.Errorf("%s:%d: %d columns, want 5", document, number, len(cells))
			continue
		}
		for id := range strings.SplitSeq(cells[1], ", ") {
			if id != "" && !identifier.MatchString(id) {
				t.Errorf("%s:%d: %q is no identifier", document, number, id)
			}
		}
		tests := triedBy.FindAllStringSubmatch(cells[2], -1)
		if len(tests) == 0 {
			t.Errorf("%s:%d: no test", document, number)
		}
		for _, m := range tests {
			if !strings.Contains(source.String(), "\nfunc "+m[1]+"(") {
				t.Errorf("%s:%d: %s has no %s", document, number, dir, m[1])
			}
			if m[2] != "" && !strings.Contains(source.String(), `"`+m[2]+`"`) {
				t.Errorf("%s:%d: %s has no %q", document, number, m[1], m[2])
			}
		}
	}
	if rows < 30 {
		t.Errorf("%s has %d vulnerabilities", document, rows)
	}
}

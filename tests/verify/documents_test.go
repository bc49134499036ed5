package verify

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fileInCode matches what looks like one of our files or directories in the code of a document.
var fileInCode = regexp.MustCompile("`((?:shared|services|tests)/[\\w/.-]*\\w|[\\w./-]+\\.(?:go|conf))`")

// Documents name files by their end, such as `paths.go` or `shared/server/filters/line.go`, and
// directories from the root. Where a file has moved, the document says where it is.
func TestFilesInDocumentsExist(t *testing.T) {
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	exists := func(name string) bool {
		return slices.ContainsFunc(all, func(file string) bool {
			return file == name || strings.HasSuffix(file, "/"+name) || strings.HasPrefix(file, name+"/")
		})
	}
	found := 0
	for _, name := range list(t, ".md") {
		// Decisions are of their day, and docs/upstream.md names Kubernetes' files, too.
		if strings.HasPrefix(name, "docs/decisions/") || name == "docs/upstream.md" {
			continue
		}
		number := 0
		for line := range strings.Lines(read(t, name)) {
			number++
			for _, m := range fileInCode.FindAllStringSubmatch(line, -1) {
				found++
				if !exists(m[1]) {
					t.Errorf("%s:%d: there is no %s", name, number, m[1])
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("documents name %d files", found)
	}
}

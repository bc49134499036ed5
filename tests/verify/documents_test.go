package verify

import (
	"go/ast"
	"go/parser"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fileInCode matches a path or name of one of our files or directories in the code of a
// document.
var fileInCode = regexp.MustCompile("`((?:shared|services|tests)/[\\w/.-]*\\w|[\\w./-]+\\.(?:go|conf))`")

// Documents name files by the end of their paths, such as `paths.go` or
// `shared/server/filters/chain.go`, and directories from the root. The test fails for files
// that have moved.
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
		// Decisions are not updated, and docs/upstream.md also names Kubernetes' files.
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

// nameInCode matches a package's exported name, or a method or field of it, in the code of
// a document: `filters.Build`, `etcdstore.Store.Watch`.
var nameInCode = regexp.MustCompile("`([a-z][a-z0-9]*)\\.([A-Z]\\w*)(?:\\.([A-Z]\\w*))?(?:\\(\\))?`")

func TestNamesInDocumentsExist(t *testing.T) {
	declared := map[string]map[string]bool{} // by package name
	for _, name := range list(t, ".go") {
		if strings.HasSuffix(name, "_test.go") || !strings.HasPrefix(name, "shared/") && !strings.HasPrefix(name, "services/") {
			continue
		}
		file := parse(t, name, parser.SkipObjectResolution)
		names := declared[file.Name.Name]
		if names == nil {
			names = map[string]bool{}
			declared[file.Name.Name] = names
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
				return false
			case *ast.TypeSpec:
				names[n.Name.Name] = true
			case *ast.ValueSpec:
				for _, value := range n.Names {
					names[value.Name] = true
				}
			case *ast.Field:
				for _, field := range n.Names {
					names[field.Name] = true
				}
			}
			return true
		})
	}
	found := 0
	for _, document := range list(t, ".md") {
		// Decisions and profiles are not updated, and docs/upstream.md names Kubernetes'
		// functions.
		if strings.HasPrefix(document, "docs/decisions/") || strings.HasPrefix(document, "docs/benchmarks/") || document == "docs/upstream.md" {
			continue
		}
		for _, m := range nameInCode.FindAllStringSubmatch(read(t, document), -1) {
			names, ours := declared[m[1]]
			if !ours {
				continue
			}
			found++
			if !names[m[2]] || m[3] != "" && !names[m[3]] {
				t.Errorf("%s: there is no %s", path.Base(document), m[0])
			}
		}
	}
	if found < 5 {
		t.Errorf("documents name %d exported names", found)
	}
}

package verify

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// A package is named after its job. These names say nothing.
var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "base"}

func TestPackagesHaveOneDoc(t *testing.T) {
	docs := map[string][]string{}
	dirs := map[string]string{}
	for _, name := range list(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := parse(t, name, parser.PackageClauseOnly|parser.ParseComments)
		dir := path.Dir(name)
		dirs[dir] = file.Name.Name
		if file.Doc == nil || ast.IsGenerated(file) {
			continue
		}
		docs[dir] = append(docs[dir], name)
		text := file.Doc.Text()
		want := "Package " + file.Name.Name + " "
		if file.Name.Name == "main" {
			if !strings.HasPrefix(text, "Command "+path.Base(dir)+" ") && !strings.EqualFold(path.Base(dir), firstWord(text)) {
				t.Errorf("%s: the doc of a command begins with its name, not %q", name, firstWord(text))
			}
		} else if !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package doc begins with %q, not %q", name, firstWord(text), want)
		}
	}
	for dir, name := range dirs {
		switch found := docs[dir]; {
		case len(found) == 0:
			t.Errorf("%s: package %s has no doc", dir, name)
		case len(found) > 1:
			t.Errorf("%s: package %s has %d docs: %s", dir, name, len(found), strings.Join(found, ", "))
		}
		if slices.Contains(emptyNames, name) || slices.Contains(emptyNames, path.Base(dir)) {
			t.Errorf("%s: the name says nothing about the job", dir)
		}
	}
}

const maxMainLines = 60

// A main function cannot be tested, so it should do almost nothing.
func TestProgramsAreThin(t *testing.T) {
	found := 0
	for _, name := range list(t, ".go") {
		dir := path.Dir(name)
		if !strings.HasPrefix(name, "services/") || path.Base(path.Dir(dir)) != "cmd" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		found++
		if n := strings.Count(read(t, name), "\n"); n >= maxMainLines {
			t.Errorf("%s has %d lines, not fewer than %d", name, n, maxMainLines)
		}
		file := parse(t, name, parser.SkipObjectResolution)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has an init function: what a program does begins in main", name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Fatal") {
				t.Errorf("%s calls %s, which skips what is deferred", name, s.Sel.Name)
			}
			return true
		})
	}
	if found < 4 {
		t.Errorf("found %d programs, want aggregator, core, extensions and triune", found)
	}
}

// TestAllocationsAreVerified checks that `make verify` runs all tests that count
// allocations, which it finds by name.
func TestAllocationsAreVerified(t *testing.T) {
	_, rest, _ := strings.Cut(strings.ReplaceAll(makefiles(t), "\\\n", " "), "\nCOUNTED = ")
	line, _, _ := strings.Cut(rest, "\n")
	counted := map[string]bool{} // true if the directory has such a test
	for _, dir := range strings.Fields(line) {
		counted[dir] = false
	}
	for _, name := range list(t, "_test.go") {
		for _, declared := range parse(t, name, 0).Decls {
			function, ok := declared.(*ast.FuncDecl)
			if !ok || !counts(function) {
				continue
			}
			if _, ok := counted[path.Dir(name)]; !ok || !strings.Contains(function.Name.Name, "Alloc") {
				t.Errorf("%s: %s counts allocations, and `make verify-allocations` does not run it", name, function.Name.Name)
			}
			counted[path.Dir(name)] = true
		}
	}
	for dir, found := range counted {
		if !found {
			t.Errorf("COUNTED has %s, where nothing counts allocations", dir)
		}
	}
}

func counts(function *ast.FuncDecl) (found bool) {
	ast.Inspect(function, func(node ast.Node) bool {
		called, ok := node.(*ast.SelectorExpr)
		found = found || ok && called.Sel.Name == "AllocsPerRun"
		return !found
	})
	return found
}

func parse(t *testing.T, name string, mode parser.Mode) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, read(t, name), mode)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

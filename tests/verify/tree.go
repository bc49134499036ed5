package verify

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"triune.dev/tests/tools"
)

// notOurs are files and directories at the root without sources; .gitignore has them, too.
// In a work tree .git is a file.
var notOurs = []string{".git", ".tools", ".triune", ".run", "bin"}

// files returns the files of the repository, relative to its root, with slashes.
var files = sync.OnceValues(func() ([]string, error) {
	root, err := tools.Root()
	if err != nil {
		return nil, err
	}
	var names []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case slices.Contains(notOurs, name):
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case entry.Type().IsRegular() && !strings.HasSuffix(name, ".test") && !strings.HasSuffix(name, ".prof"):
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	return names, err
})

// list returns the files whose name ends in one of suffixes.
func list(t *testing.T, suffixes ...string) []string {
	t.Helper()
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range all {
		if slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no file ends in %q", suffixes)
	}
	return found
}

// makefiles returns the text of the Makefile and of what it includes.
func makefiles(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range list(t, "Makefile", ".mk") {
		all.WriteString(read(t, name))
	}
	return all.String()
}

// read returns the text of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

package verify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"

	"triune.dev/tests/tools"
)

// prefix begins the import path of every package of ours.
const prefix = "triune.dev/"

// modules are the directories of the workspace, and the import paths of its modules without
// prefix.
var modules = []string{"shared", "services/aggregator", "services/core", "services/extensions", "services/standalone", "tests"}

// pkg is a package in the output of the go command.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	Doc        string
	Imports    []string // of the package itself
	Deps       []string // everything that is linked with it
	// TestImports and XTestImports are additional imports of its tests, from inside the
	// package and from outside.
	TestImports, XTestImports []string
}

// ours returns all packages of the workspace, by import path.
var ours = sync.OnceValues(func() ([]pkg, error) {
	root, err := tools.Root()
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-json=ImportPath,Dir,Name,Doc,Imports,Deps,TestImports,XTestImports"}
	for _, m := range modules {
		args = append(args, "./"+m+"/...")
	}
	cmd := exec.Command(cmp.Or(os.Getenv("GO"), "go"), args...)
	cmd.Dir = root
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var packages []pkg
	for decoder := json.NewDecoder(&stdout); ; {
		var p pkg
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			slices.SortFunc(packages, func(a, b pkg) int { return cmp.Compare(a.ImportPath, b.ImportPath) })
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
})

// matches reports whether an import path matches a pattern: path elements as in
// [path.Match], and "..." at the end for the package and everything below it.
func matches(pattern, importPath string) bool {
	base, subtree := strings.CutSuffix(pattern, "/...")
	if subtree {
		elements := strings.Split(importPath, "/")
		if n := strings.Count(base, "/") + 1; len(elements) >= n {
			importPath = strings.Join(elements[:n], "/")
		}
	}
	ok, err := path.Match(base, importPath)
	return ok && err == nil
}

func matchesAny(patterns []string, importPath string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, importPath) })
}

package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Share copies the named files of p.Dir to a directory, under the same names, for a program
// that must not read the others. Names have slashes, such as etcd/ca.crt. Share replaces
// changed files, each atomically, and removes all others. A certificate always fits its key,
// since [Ensure] issues certificates again for the same key.
//
// The error names the file; Share may be called again. For each directory, only one goroutine
// of one process may call it at a time.
func (p *PKI) Share(to string, names ...string) error {
	var pending []file
	for _, name := range names {
		if !filepath.IsLocal(name) || filepath.Clean(name) != filepath.FromSlash(name) {
			return fmt.Errorf("share %s: the name is not of a file below %s", name, p.Dir)
		}
		from := filepath.Join(p.Dir, filepath.FromSlash(name))
		info, err := os.Stat(from)
		if err != nil {
			return fmt.Errorf("share %s: %w", name, err)
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("share %s: %s is no file", name, from)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("share %s: %w", name, err)
		}
		f := file{path: filepath.Join(to, filepath.FromSlash(name)), mode: info.Mode().Perm(), data: data}
		if !exists(f) {
			pending = append(pending, f)
		}
	}
	if err := writeAll(pending); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	return removeOthers(to, names)
}

// removeOthers removes all files in dir but the named ones. It keeps directories.
func removeOthers(dir string, names []string) error {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || entry.IsDir() || slices.Contains(names, filepath.ToSlash(name)) {
			return err
		}
		return os.Remove(path)
	})
	if errors.Is(err, fs.ErrNotExist) { // no names were given
		return nil
	}
	if err != nil {
		return fmt.Errorf("share: %w", err)
	}
	return nil
}

package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Share fills a directory with exactly the named files of p.Dir, under the same
// names, for a program that must not read the others. Names have slashes, such as
// etcd/ca.crt. A file that has changed is replaced, one that is no longer named is
// removed, and what is right is left alone. Each file is replaced atomically; a pair
// fits at any time, for [Ensure] issues a certificate again for the key it has.
//
// An error names the file. Share may be called again after one. It is for one
// goroutine and process at a time for each directory.
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
		if !isThere(f) {
			pending = append(pending, f)
		}
	}
	if err := writeAll(pending); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	return removeOthers(to, names)
}

// removeOthers leaves the named files in dir and nothing else but directories.
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
	if errors.Is(err, fs.ErrNotExist) { // nothing was named
		return nil
	}
	if err != nil {
		return fmt.Errorf("share: %w", err)
	}
	return nil
}

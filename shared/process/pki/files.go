package pki

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// file is a file to write.
type file struct {
	path string
	mode fs.FileMode
	data []byte
}

// writeAll writes all files: it writes and syncs them under temporary names, concurrently
// since one sync takes about as long as many, renames them in the given order, and then syncs
// the directories. If it fails, it removes the temporary files.
func writeAll(files []file) (err error) {
	if len(files) == 0 {
		return nil
	}
	temps := make([]string, len(files))
	defer func() {
		if err != nil {
			for _, temp := range temps {
				if temp != "" {
					err = errors.Join(err, removeIfThere(temp))
				}
			}
		}
	}()
	dirs := map[string]struct{}{}
	for _, f := range files {
		dirs[filepath.Dir(f.path)] = struct{}{}
	}
	for dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	var group errgroup.Group
	group.SetLimit(16)
	for i, f := range files {
		group.Go(func() (err error) {
			temps[i], err = writeTemp(f)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, f := range files {
		if err := os.Rename(temps[i], f.path); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
		temps[i] = ""
	}
	for dir := range dirs {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// writeTemp writes and syncs f under a temporary name in its directory. It returns the name
// also if it fails after it has made the file. Temporary files have mode 0600 at first, so
// that others can never read a key.
func writeTemp(f file) (name string, err error) {
	temp, err := os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+".*")
	if err != nil {
		return "", fmt.Errorf("write %s: %w", f.path, err)
	}
	name = temp.Name()
	_, err = temp.Write(f.data)
	if err == nil {
		err = temp.Chmod(f.mode)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return name, fmt.Errorf("write %s: %w", f.path, err)
	}
	return name, nil
}

// exists reports whether f exists with its content and mode.
func exists(f file) bool {
	have, err := os.ReadFile(f.path)
	if err != nil || !bytes.Equal(have, f.data) {
		return false
	}
	info, err := os.Stat(f.path)
	return err == nil && info.Mode().Perm() == f.mode
}

// writeIfChanged writes f unless it exists with its content and mode.
func writeIfChanged(f file) error {
	if exists(f) {
		return nil
	}
	return writeAll([]file{f})
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes the renames in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

//go:build unix

package command

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// owner is the owner that files get; nil leaves them as they are.
type owner struct{ uid, gid int }

func parseOwner(text string) (*owner, error) {
	if text == "" {
		return nil, nil
	}
	user, group, _ := strings.Cut(text, ":")
	uid, err := strconv.ParseUint(user, 10, 31)
	gid, groupErr := strconv.ParseUint(group, 10, 31)
	if err != nil || groupErr != nil {
		return nil, fmt.Errorf("--owner=%s is not of the form uid:gid, both numbers", text)
	}
	return &owner{int(uid), int(gid)}, nil
}

// chown makes dir if it does not exist and changes the owner of everything in it.
func (o *owner) chown(dir string) error {
	if o == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("chown %s to %d:%d: %w", dir, o.uid, o.gid, err)
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if is, err := ownerOf(path); err == nil && is == *o {
			return nil
		}
		return os.Lchown(path, o.uid, o.gid)
	})
	if err != nil {
		return fmt.Errorf("chown %s to %d:%d: %w", dir, o.uid, o.gid, err)
	}
	return nil
}

// chownToDirectoryOwner gives path the owner of its directory.
func chownToDirectoryOwner(path string) error {
	want, err := ownerOf(filepath.Dir(path))
	if err != nil {
		return err
	}
	if is, err := ownerOf(path); err != nil || is == want {
		return err
	}
	return os.Lchown(path, want.uid, want.gid)
}

func ownerOf(path string) (owner, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return owner{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return owner{}, fmt.Errorf("the owner of %s is unknown", path)
	}
	return owner{int(stat.Uid), int(stat.Gid)}, nil
}

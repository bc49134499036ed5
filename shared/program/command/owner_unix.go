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

// owner is to whom files are given; nil for nobody.
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

// give makes dir where it does not exist, and the owner own everything in it.
func (o *owner) give(dir string) error {
	if o == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("give %s to %d:%d: %w", dir, o.uid, o.gid, err)
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
		return fmt.Errorf("give %s to %d:%d: %w", dir, o.uid, o.gid, err)
	}
	return nil
}

// giveToDirectoryOwner lets the person in whose directory a file was made read
// it, whoever made it.
func giveToDirectoryOwner(path string) error {
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
		return owner{}, fmt.Errorf("the owner of %s is not known", path)
	}
	return owner{int(stat.Uid), int(stat.Gid)}, nil
}

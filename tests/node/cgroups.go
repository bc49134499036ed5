package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const cgroups = "/sys/fs/cgroup"

// newCgroup makes a cgroup for all Pods of one node in every hierarchy, or two kubelets on a
// machine would remove each other's.
func newCgroup(name string) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		dir := filepath.Join(hierarchy, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		// A cpuset of cgroup v1 has no processors until it is given some.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			whole, err := os.ReadFile(filepath.Join(hierarchy, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), whole, 0o644); err != nil {
				return fmt.Errorf("make a cgroup: %w", err)
			}
		}
	}
	return nil
}

// hierarchies returns the roots: one with cgroup v2, one for each controller with v1.
func hierarchies() ([]string, error) {
	if unified() {
		return []string{cgroups}, nil
	}
	entries, err := os.ReadDir(cgroups)
	if err != nil {
		return nil, fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	var all []string
	for _, entry := range entries {
		if entry.IsDir() {
			all = append(all, filepath.Join(cgroups, entry.Name()))
		}
	}
	return all, nil
}

func unified() bool {
	_, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers"))
	return err == nil
}

// removeCgroup kills what runs in the cgroup and removes it.
func removeCgroup(name string) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, hierarchy := range hierarchies {
		errs = append(errs, removeTree(filepath.Join(hierarchy, name)))
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it is gone
	}
	var errs []error
	for _, entry := range entries {
		if entry.IsDir() {
			errs = append(errs, removeTree(filepath.Join(dir, entry.Name())))
		}
	}
	for try := 0; ; try++ {
		err := os.Remove(dir)
		if err == nil || os.IsNotExist(err) {
			return errors.Join(errs...)
		}
		killAll(filepath.Join(dir, "cgroup.procs"))
		if try == 50 {
			return errors.Join(append(errs, fmt.Errorf("remove a cgroup: %w", err))...)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// killAll kills the processes that a file lists.
func killAll(file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		return
	}
	for pid := range strings.FieldsSeq(string(data)) {
		kill(pid)
	}
}

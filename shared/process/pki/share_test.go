package pki

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// filesIn returns the files below a directory, including hidden ones.
func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

func TestShareHoldsExactlyWhatIsNamed(t *testing.T) {
	dir := t.TempDir()
	p, err := Ensure(filepath.Join(dir, "pki"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "share")
	share := func(names ...string) {
		t.Helper()
		if err := p.Share(to, names...); err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		if diff := cmp.Diff(names, filesIn(t, to)); diff != "" {
			t.Errorf("files (-named +there):\n%s", diff)
		}
	}
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	stat := func(name string) fs.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(to, name))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	share("ca.crt", "core.crt", "core.key", "etcd/ca.crt", "etcd/client.key")
	if got := stat("core.key").Mode().Perm(); got != 0o600 {
		t.Errorf("a key has mode %v", got)
	}
	if got := stat("ca.crt").Mode().Perm(); got != 0o644 {
		t.Errorf("a certificate has mode %v", got)
	}

	// Correct files are kept, and files that are no longer named are removed.
	before := stat("core.key")
	share("core.crt", "core.key", "etcd/ca.crt")
	if !os.SameFile(before, stat("core.key")) {
		t.Error("a file that is right was written again")
	}

	// Changed files are replaced, and a mode that is too permissive is corrected.
	if err := os.WriteFile(filepath.Join(to, "core.crt"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(to, "core.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	share("core.crt", "core.key")
	if read(filepath.Join(to, "core.crt")) != read(filepath.Join(p.Dir, "core.crt")) || stat("core.key").Mode().Perm() != 0o600 {
		t.Error("a file that is not right stays")
	}
	share()
}

func TestShareRefusals(t *testing.T) {
	dir := t.TempDir()
	p, err := Ensure(filepath.Join(dir, "pki"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../pki/ca.key", "/etc/hostname", "", ".", "etcd", "gone.crt", "etcd//ca.crt"} {
		to := filepath.Join(dir, "share")
		if err := p.Share(to, "ca.crt", name); err == nil || !strings.Contains(err.Error(), "share "+name+":") {
			t.Errorf("%q: got %v, want an error that names it", name, err)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%q: something was written", name)
		}
	}
}

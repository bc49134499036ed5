package command

import (
	"io"
	"os"
	"path/filepath"
)

// install copies this program to path, unless a file of the same size that is not older
// is there. The copy is renamed into place, since the old program may be running.
func install(path string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	source, err := os.Open(self)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if have, err := os.Stat(path); err == nil && have.Size() == info.Size() && !have.ModTime().Before(info.ModTime()) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	part, err := os.OpenFile(path+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(part, source)
	if closeErr := part.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

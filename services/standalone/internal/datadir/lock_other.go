//go:build !unix

package datadir

import "os"

// Lock makes dir if necessary. It locks nothing on systems without flock(2).
func Lock(dir string) (unlock func(), err error) {
	return func() {}, os.MkdirAll(dir, 0o700)
}

//go:build !unix

package datadir

import "os"

// Lock makes dir, if need be. Where the system has no flock(2), nothing keeps two
// processes from using it.
func Lock(dir string) (unlock func(), err error) {
	return func() {}, os.MkdirAll(dir, 0o700)
}

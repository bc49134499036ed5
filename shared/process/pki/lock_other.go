//go:build !unix

package pki

// lockDir does nothing, since the system has no flock(2): only one process at a time may
// call Ensure.
func lockDir(string) (unlock func(), err error) { return func() {}, nil }

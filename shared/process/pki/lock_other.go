//go:build !unix

package pki

// lockDir does nothing where the system has no flock(2): there, one process at
// a time may prepare an installation.
func lockDir(string) (unlock func(), err error) { return func() {}, nil }

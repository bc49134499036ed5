//go:build !unix

package command

import "fmt"

// owner is always nil, since files have no numeric owner on this system.
type owner struct{}

func parseOwner(text string) (*owner, error) {
	if text != "" {
		return nil, fmt.Errorf("--owner=%s: files have no numeric owner on this system", text)
	}
	return nil, nil
}

func (*owner) chown(string) error { return nil }

func chownToDirectoryOwner(string) error { return nil }

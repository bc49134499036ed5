//go:build !linux

package accounting

import (
	"errors"
	"time"
)

// CPU is not supported on this system.
func CPU(int) (time.Duration, error) { return 0, errors.ErrUnsupported }

// OwnCPU is not supported on this system.
func OwnCPU() (time.Duration, error) { return 0, errors.ErrUnsupported }

package cluster

import (
	"os"
	"strconv"
)

// Replicas returns the replicas of every tier that TRIUNE_REPLICAS asks for, or otherwise.
// The go command caches no results of tests with flags of their own, so what is run often
// is configured by the environment.
func Replicas(otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("TRIUNE_REPLICAS")); err == nil {
		return n
	}
	return otherwise
}

package cluster

import (
	"os"
	"strconv"
)

// Replicas returns the number of replicas of every tier in TRIUNE_REPLICAS, or otherwise.
// An environment variable, unlike a test flag, lets the go command cache results.
func Replicas(otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("TRIUNE_REPLICAS")); err == nil {
		return n
	}
	return otherwise
}

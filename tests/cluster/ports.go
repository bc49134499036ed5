package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Listening ports are taken from below the range from which the kernel gives
// ports to outgoing connections: between the moment a port is found free and
// the moment a server binds it, no connection can take it.
const (
	firstPort = 20000
	lastPort  = 32000
)

var ports = struct {
	sync.Mutex
	given map[int]bool
}{given: map[int]bool{}}

// freePort returns a loopback port on which nothing listens, never the same one
// twice in a process.
func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if ports.given[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		l.Close()
		ports.given[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("find a free port between %d and %d", firstPort, lastPort)
}

// FreePort is freePort for tests that start a program of their own.
func FreePort() (int, error) { return freePort() }

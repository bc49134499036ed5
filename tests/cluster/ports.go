package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports to listen on are below the range from which the kernel assigns ports to outgoing
// connections, so that no connection can take a port after it was found free.
const (
	firstPort = 20000
	lastPort  = 32000
)

var ports = struct {
	sync.Mutex
	given map[int]bool
}{given: map[int]bool{}}

// freePort returns a free loopback port, never the same one twice in a process.
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

// FreePort is freePort for tests that start their own programs.
func FreePort() (int, error) { return freePort() }

package remote

import (
	"crypto/sha256"
	"fmt"
)

// Server identifies an extension server. APIServices with equal Servers are served by replicas of
// the same process and described by the same document.
type Server struct {
	namespace, name string
	port            int32
	ca              [sha256.Size]byte
	insecure        bool
}

// Server returns the server of b.
func (b *Backend) Server() Server {
	trust := trustOf(b.apiService)
	return Server{
		namespace: b.apiService.Spec.Service.Namespace,
		name:      b.apiService.Spec.Service.Name,
		port:      b.port(),
		ca:        trust.caBundle,
		insecure:  trust.insecure,
	}
}

// String returns a unique name of the server.
func (s Server) String() string {
	return fmt.Sprintf("%s/%s:%d (ca %x, insecure %t)", s.namespace, s.name, s.port, s.ca[:4], s.insecure)
}

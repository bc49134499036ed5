// Package nats runs a NATS server with JetStream in the process. [Start] starts a [Server],
// whose Connect opens connections to it.
//
// The server has no listener. Connections are in memory, so other processes cannot
// subscribe to its subjects.
package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	// MaxPayload is the largest message. An event carries an object and its
	// previous state, and etcd takes requests of up to 1.5 MiB.
	MaxPayload = 4 << 20

	startLimit = 10 * time.Second
)

// Server is a running NATS server. Its methods are safe for concurrent use.
type Server struct {
	server *server.Server

	mu     sync.Mutex
	conns  []*nats.Conn // guarded by mu
	closed bool         // guarded by mu
}

// Start runs a server with its streams in dir and returns when it accepts connections. The
// caller must Close it.
func Start(ctx context.Context, dir string) (*Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "triune",
		DontListen: true,
		JetStream:  true,
		StoreDir:   dir,
		MaxPayload: MaxPayload,
		NoSigs:     true,
	})
	if err != nil {
		return nil, fmt.Errorf("NATS in %s: %w", dir, err)
	}
	log := &logger{fatal: make(chan error, 1)}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	if err := log.ready(ctx, s); err != nil {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("NATS in %s: %w", dir, err)
	}
	return &Server{server: s}, nil
}

// Connect opens a connection in memory. The caller may close it; otherwise Close does, since
// it would try to reconnect forever.
func (s *Server) Connect() (*nats.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nats.ErrConnectionClosed
	}
	conn, err := nats.Connect("", nats.InProcessServer(s.server), nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	s.conns = append(slices.DeleteFunc(s.conns, (*nats.Conn).IsClosed), conn)
	return conn, nil
}

// Check reports whether the server runs with its streams available.
func (s *Server) Check() error {
	switch {
	case !s.server.Running():
		return errors.New("NATS has stopped")
	case !s.server.JetStreamEnabled():
		return errors.New("JetStream is disabled")
	}
	return nil
}

// Close closes the connections, stops the server and waits for its files to be closed.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, conn := range s.conns {
		conn.Close()
	}
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

package floor

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Run serves [Handler] over TLS until ctx ends, and then returns nil.
func Run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("floor", flag.ContinueOnError)
	addr := flags.String("addr", "127.0.0.1:0", "address to listen on")
	cert := flags.String("tls-cert-file", "", "serving certificate")
	key := flags.String("tls-private-key-file", "", "its key")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		return fmt.Errorf("serve the floor: %w", err)
	}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		return fmt.Errorf("serve the floor: %w", err)
	}
	server := &http.Server{
		Handler:           Handler(),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the floor: %w", err)
	}
	return nil
}

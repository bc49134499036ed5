package options

import (
	"fmt"

	"github.com/spf13/pflag"

	"triune.dev/shared/server/apiserver"
)

// HTTP2 holds the flag that selects the HTTP/2 server of the secure port.
type HTTP2 struct {
	// Server is "triune" or "go".
	Server string
}

// NewHTTP2 returns the default, triune.
func NewHTTP2() *HTTP2 { return &HTTP2{Server: string(apiserver.TriuneHTTP2)} }

// AddFlags adds the flag.
func (o *HTTP2) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Server, "http2-server", o.Server,
		"HTTP/2 server of the secure port: triune, which combines the writes of the watches on a connection, or go, which kube-apiserver uses. Both have the same limits.")
}

// Validate returns all problems, each naming its flag.
func (o *HTTP2) Validate() []error {
	switch apiserver.HTTP2Server(o.Server) {
	case apiserver.TriuneHTTP2, apiserver.GoHTTP2:
		return nil
	}
	return []error{fmt.Errorf("--http2-server=%s must be go or triune", o.Server)}
}

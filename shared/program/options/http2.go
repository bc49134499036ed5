package options

import (
	"fmt"

	"github.com/spf13/pflag"

	"triune.dev/shared/server/apiserver"
)

// HTTP2 says which HTTP/2 server answers on the secure port.
type HTTP2 struct {
	// Server is "triune" or "go".
	Server string
}

// NewHTTP2 returns the default.
func NewHTTP2() *HTTP2 { return &HTTP2{Server: string(apiserver.TriuneHTTP2)} }

// AddFlags adds the flag.
func (o *HTTP2) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Server, "http2-server", o.Server,
		"HTTP/2 server of the secure port: triune, which writes what many watches of a connection are sent together, or go, the one of kube-apiserver. Both have the same limits.")
}

// Validate returns what is wrong.
func (o *HTTP2) Validate() []error {
	switch apiserver.HTTP2Server(o.Server) {
	case apiserver.TriuneHTTP2, apiserver.GoHTTP2:
		return nil
	}
	return []error{fmt.Errorf("--http2-server=%s must be go or triune", o.Server)}
}

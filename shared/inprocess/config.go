package inprocess

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// Host is the host name in the requests of [Config]. It can never be resolved
// (RFC 2606), so that code which dials by itself instead of using the transport
// fails at once and by name.
const Host = "in-process.invalid"

// Config returns a client-go configuration that reaches the handler inside this
// process with the given bearer token (none if empty). The client is not rate
// limited, for the server limits it as it limits everybody, and nothing is
// compressed. Callers may set the content type, the user agent and the rest.
func Config(handler func() http.Handler, bearerToken string) *rest.Config {
	return &rest.Config{
		Host:               "https://" + Host,
		Transport:          New(handler),
		BearerToken:        bearerToken,
		QPS:                -1,
		DisableCompression: true,
	}
}

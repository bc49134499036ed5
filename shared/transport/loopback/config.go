package loopback

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// Host is the host name in the requests of [Config]. It never resolves (RFC 2606), so that code
// which dials instead of using the transport fails immediately with a clear name.
const Host = "in-process.invalid"

// Config returns a client-go configuration that calls the handler in this process with the
// given bearer token (none if empty). The client has no rate limit, because the server limits
// it like any other client, and does not compress. Callers may set the content type, the user
// agent and other fields.
func Config(handler func() http.Handler, bearerToken string) *rest.Config {
	return &rest.Config{
		Host:               "https://" + Host,
		Transport:          New(handler),
		BearerToken:        bearerToken,
		QPS:                -1,
		DisableCompression: true,
	}
}

package h2

import (
	"net/http"

	"golang.org/x/net/http2"
)

// ConfigureGo is [Configure] with the server of golang.org/x/net/http2 and the settings of
// SecureServingInfo.Serve of k8s.io/apiserver. The server of net/http is not used, because its
// fixes require a new release of Go.
func ConfigureGo(hs *http.Server, o Options) error {
	return http2.ConfigureServer(hs, o.xnetServer()) //nolint:staticcheck // see above
}

//nolint:staticcheck // see above
func (o Options) xnetServer() *http2.Server {
	return &http2.Server{
		MaxConcurrentStreams:         uint32(o.MaxConcurrentStreams),
		MaxReadFrameSize:             uint32(o.MaxUploadPerStream),
		MaxUploadBufferPerStream:     int32(o.MaxUploadPerStream),
		MaxUploadBufferPerConnection: int32(o.connWindow()),
		IdleTimeout:                  o.IdleTimeout,
	}
}

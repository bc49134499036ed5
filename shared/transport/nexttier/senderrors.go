package nexttier

import (
	"errors"
	"net/http"
	"strings"

	"golang.org/x/net/http2"
)

// isUnprocessed reports whether err proves that the server has not processed the request: it
// refused the stream, closed the connection before it (RFC 9113, sections 8.7 and 6.8), or the
// connection ended before anything was written. net/http exports no error values for the last
// two; a test compares these texts with its actual errors.
func isUnprocessed(err error) bool {
	var streamErr http2.StreamError
	if errors.As(err, &streamErr) {
		return streamErr.Code == http2.ErrCodeRefusedStream
	}
	text := err.Error()
	for _, known := range []string{
		"http2: Transport received Server's graceful shutdown GOAWAY",
		"http2: client conn not usable",
		"http2: client conn could not be established",
	} {
		if strings.HasSuffix(text, known) {
			return true
		}
	}
	return false
}

// isHeaderTooLarge reports whether the transport did not send the request because its headers
// exceed the limit of the server.
func isHeaderTooLarge(err error) bool {
	return strings.HasSuffix(err.Error(), "http2: request header list larger than peer's advertised limit")
}

// isSafe reports whether the method is safe (RFC 9110, section 9.2.1), so that the request may be
// processed twice.
func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}

package nexttier

import (
	"errors"
	"net/http"
	"strings"

	"golang.org/x/net/http2"
)

// unprocessed reports whether err proves that the server has not processed the
// request: it refused the stream, or closed the connection before the stream
// (RFC 9113 sections 8.7 and 6.8), or the connection had ended before anything
// was written. net/http has no exported form of the last two but their texts,
// which a test holds against the real thing.
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

// tooLong reports whether err says that the next tier does not accept headers as long as the
// request has, for which it has not been sent.
func isHeaderTooLarge(err error) bool {
	return strings.HasSuffix(err.Error(), "http2: request header list larger than peer's advertised limit")
}

// safe reports whether the method changes nothing (RFC 9110 section 9.2.1), so
// that a request may be carried out twice.
func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}

package loopback

import (
	"net/http"
	"time"

	"k8s.io/client-go/transport"
)

// Delay returns a wrapper of a transport for clients that send requests before their server
// runs. It delays each request until ready is closed, the request's context ends, or limit has
// passed; then the transport handles the request as usual. A limit of 0 means no limit.
func Delay(ready <-chan struct{}, limit time.Duration) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper { return delayed{next, ready, limit} }
}

type delayed struct {
	next  http.RoundTripper
	ready <-chan struct{}
	limit time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (d delayed) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case <-d.ready:
		return d.next.RoundTrip(req)
	default:
	}
	var expired <-chan time.Time
	if d.limit > 0 {
		timer := time.NewTimer(d.limit)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-d.ready:
	case <-expired:
	case <-req.Context().Done():
	}
	return d.next.RoundTrip(req)
}

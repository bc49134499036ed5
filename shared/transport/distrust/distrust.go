// Package distrust marks the 401 responses by which a tier refuses the proxy, and not the user.
//
// A tier that forwards a request asserts its user over mutual TLS. If the next tier refuses the
// front-proxy certificate, the installation is at fault: the request was not processed, and
// another replica may accept the certificate. A 401 can also come from behind authentication,
// from an admission webhook or from a Pod that is reached by proxy. That one is meant for the
// client, and the request may have had effects.
//
// Each request between tiers therefore carries a challenge, a random text of the proxy. A tier
// that refuses the proxy echoes it ([WithEcho]), and the proxy recognizes the echo ([Echoed]). Once
// the proxy is trusted, the challenge is removed from the request ([RemoveChallenge]): nothing
// behind authentication can echo it, and a refused user is not mistaken for a refused proxy.
// Clients cannot interfere: the proxy replaces challenges in requests and removes echoes from
// responses, and [WithEcho] requires a client certificate.
//
// All functions are safe for concurrent use.
package distrust

import "net/http"

const (
	// ChallengeHeader is the request header with the challenge. Proxies of all releases remove
	// X-Remote- headers from requests of clients.
	ChallengeHeader = "X-Remote-Challenge"
	// EchoHeader is the response header with the echoed challenge.
	EchoHeader = "X-Remote-Challenge-Refused"
)

// WithEcho returns a handler for requests that failed authentication. It echoes the challenge, if
// the request still has one, and calls next.
func WithEcho(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		challenge := req.Header[ChallengeHeader]
		if len(challenge) == 1 && req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
			w.Header()[EchoHeader] = challenge
		}
		next.ServeHTTP(w, req)
	})
}

// RemoveChallenge removes the challenge from the request of a trusted proxy.
func RemoveChallenge(request http.Header) { delete(request, ChallengeHeader) }

// Echoed reports whether a response with these headers refuses the proxy that sent challenge.
func Echoed(answer http.Header, challenge string) bool {
	echo := answer[EchoHeader]
	return len(echo) == 1 && echo[0] == challenge
}

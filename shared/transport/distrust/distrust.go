// Package distrust tells "I do not believe who asserts this identity" from every other 401.
//
// A tier that passes a request on asserts its user over mutual TLS. If the next tier refuses
// the front-proxy certificate, that is a fault of the installation, nothing has been carried
// out, and another replica may believe it. But a 401 may come from behind authentication,
// too: from an admission webhook, or from a pod that is reached by proxy. Then it is the
// client's, and the request may have had effects.
//
// So each request between tiers carries a challenge, a random text that only the proxy
// knows, and a tier that refuses the proxy echoes it. A request loses its challenge as soon
// as the proxy is believed ([Forget]), so that nothing behind authentication can echo it, and
// a refused user is not mistaken for a refused proxy. A client cannot interfere either: the
// proxy replaces the challenge in what comes in, removes the echo from what goes back, and
// [Mark] echoes only to a client that has a certificate.
package distrust

import "net/http"

const (
	// Challenge is the header of a request between tiers that has the challenge. Proxies have
	// always removed X-Remote- headers from what clients send.
	Challenge = "X-Remote-Challenge"
	// Echo is the header of an answer that has it back.
	Echo = "X-Remote-Challenge-Refused"
)

// Mark answers requests that failed authentication by next, with an echo if the challenge is
// still there.
func Mark(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		challenge := req.Header[Challenge]
		if len(challenge) == 1 && req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
			w.Header()[Echo] = challenge
		}
		next.ServeHTTP(w, req)
	})
}

// Forget removes the challenge from the headers of a request whose sender is believed.
func Forget(request http.Header) { delete(request, Challenge) }

// Marked reports whether the answer with these headers refuses the proxy that has sent
// challenge.
func Marked(answer http.Header, challenge string) bool {
	echo := answer[Echo]
	return len(echo) == 1 && echo[0] == challenge
}

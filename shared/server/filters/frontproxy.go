package filters

import (
	"net/http"

	"triune.dev/shared/server/authn"
	"triune.dev/shared/transport/distrust"
)

// A connection of a front proxy carries the requests of many clients. Over HTTP/2 the
// header "Connection: close" in one answer would move them all to another connection. The
// header is meant for a client, and the tier in front sends it to the client itself.

// cleanProxied goes behind authentication. It removes from a request the headers that only
// authentication reads, and keeps the connection of a front proxy open, which
// authentication closes after anonymous requests.
func cleanProxied(proxies *authn.FrontProxies) filter {
	clean := func(_ *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
		distrust.RemoveChallenge(req.Header)
		if header := w.Header(); len(header["Connection"]) > 0 && req.ProtoMajor > 1 && proxies.Proxied(req) {
			delete(header, "Connection")
		}
		return w, req
	}
	return filter{
		wrap: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w, req = clean(nil, w, req)
				next.ServeHTTP(w, req)
			})
		},
		step: clean,
	}
}

// keepProxiesOpen keeps the connections of front proxies open when next, which answers
// requests that failed authentication, would close them: the client is refused, not the
// front proxy.
func keepProxiesOpen(next http.Handler, proxies *authn.FrontProxies) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor > 1 && proxies.Proxied(req) {
			w = keepOpenWriter{w}
		}
		next.ServeHTTP(w, req)
	})
}

type keepOpenWriter struct{ http.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w keepOpenWriter) WriteHeader(status int) {
	delete(w.Header(), "Connection")
	w.ResponseWriter.WriteHeader(status)
}

// exceptProxies gives the requests of front proxies to next, and all others to filtered.
func exceptProxies(filtered, next http.Handler, proxies *authn.FrontProxies) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if proxies.Proxied(req) {
			next.ServeHTTP(w, req)
			return
		}
		filtered.ServeHTTP(w, req)
	})
}

package filters

import (
	"net/http"

	"triune.dev/shared/server/authn"
	"triune.dev/shared/transport/distrust"
)

// The connections of a front proxy carry the requests of many clients. Over HTTP/2 the header
// "Connection: close" of one answer would have all of them look for another connection. It is
// meant for the client, whom the tier in front tells itself.

// passed is a part behind authentication. It takes from a request what is of no concern to
// who serves it, and keeps the connection of a front proxy: authentication closes those of
// anonymous clients.
func passed(proxies *authn.FrontProxies) part {
	pass := func(_ *step, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
		distrust.Forget(req.Header)
		if header := w.Header(); len(header["Connection"]) > 0 && req.ProtoMajor > 1 && proxies.Sent(req) {
			delete(header, "Connection")
		}
		return w, req
	}
	return part{
		filter: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w, req = pass(nil, w, req)
				next.ServeHTTP(w, req)
			})
		},
		link: pass,
	}
}

// keepOpen has next, which answers requests that failed authentication, keep the connection of
// a front proxy: it may be believed, and the user refused.
func keepOpen(next http.Handler, proxies *authn.FrontProxies) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor > 1 && proxies.Sent(req) {
			w = keptOpen{w}
		}
		next.ServeHTTP(w, req)
	})
}

type keptOpen struct{ http.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w keptOpen) WriteHeader(status int) {
	delete(w.Header(), "Connection")
	w.ResponseWriter.WriteHeader(status)
}

// exceptProxies gives the requests of front proxies to next, and all others to filtered.
func exceptProxies(filtered, next http.Handler, proxies *authn.FrontProxies) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if proxies.Sent(req) {
			next.ServeHTTP(w, req)
			return
		}
		filtered.ServeHTTP(w, req)
	})
}

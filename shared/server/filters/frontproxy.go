package filters

import (
	"net"
	"net/http"
	"strings"

	"triune.dev/shared/server/authn"
	"triune.dev/shared/transport/distrust"
	"triune.dev/shared/transport/tierclient"
)

// A connection of a front proxy carries the requests of many clients. Over HTTP/2 the
// header "Connection: close" in one answer would move them all to another connection. The
// header is meant for a client, and the tier in front sends it to the client itself.

// cleanProxied goes behind authentication. It removes from a request the headers that only
// authentication reads, undoes what the hop from another tier has changed, and keeps the
// connection of a front proxy open, which authentication closes after anonymous requests.
func cleanProxied(proxies *authn.FrontProxies) filter {
	clean := func(_ *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
		distrust.RemoveChallenge(req.Header)
		if len(req.Header["X-Forwarded-For"]) == 1 && proxies.FromTier(req) {
			undoHop(req)
		}
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

// undoHop makes a request that another tier has passed on the request that its client sent to
// that tier: audit, and servers behind the proxies of Pods, Services and Nodes, then see what
// kube-apiserver would show them. It also removes an audit ID that the client has chosen.
func undoHop(req *http.Request) {
	delete(req.Header, auditIDHeader)
	port := "0"
	if values := req.Header[tierclient.ClientPortHeader]; len(values) == 1 {
		port = values[0]
	}
	delete(req.Header, tierclient.ClientPortHeader)
	forwarded := req.Header["X-Forwarded-For"][0]
	before, client := "", forwarded
	if i := strings.LastIndex(forwarded, ", "); i >= 0 {
		before, client = forwarded[:i], forwarded[i+len(", "):]
	}
	req.RemoteAddr = net.JoinHostPort(client, port)
	if before == "" {
		delete(req.Header, "X-Forwarded-For")
		return
	}
	req.Header["X-Forwarded-For"] = []string{before}
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

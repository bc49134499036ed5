package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
)

// unsecuredUser is the user of all requests to Config.Unsecured. The name is that of
// kube-apiserver's former insecure port; the group gives all rights.
var unsecuredUser user.Info = &user.DefaultInfo{
	Name:   "system:unsecured",
	Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
}

// withoutAuthentication returns a copy of g that takes everybody for unsecuredUser, whatever
// the request says.
func withoutAuthentication(g *genericapiserver.Config) *genericapiserver.Config {
	unsecured := *g
	unsecured.Authentication.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: unsecuredUser, Audiences: g.Authentication.APIAudiences}, true, nil
	})
	unsecured.Authentication.RequestHeaderConfig = nil
	return &unsecured
}

// localOnly refuses requests that a web page in a browser of this machine may have sent: those
// for another host, to which a name of the page's was pointed at this machine, and those with
// an origin.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		host, _, err := net.SplitHostPort(req.Host)
		if err != nil {
			host = req.Host
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, fmt.Sprintf("this port is only for the host localhost, not for %q", host), http.StatusForbidden)
			return
		}
		if req.Header.Get("Origin") != "" {
			http.Error(w, "this port is not for web pages", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// newUnsecuredServer returns a server for HTTP/1.1 without TLS.
func newUnsecuredServer(listener net.Listener, handler http.Handler) *http.Server {
	return &http.Server{
		Addr: listener.Addr().String(), Handler: localOnly(handler),
		MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout, ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog: slog.NewLogLogger(errorLog{}, slog.LevelError),
	}
}

// serveUnsecured serves until the server is shut down; then it returns nil.
func serveUnsecured(s *http.Server, listener net.Listener) error {
	klog.Warningf("everybody on this machine has all rights: %s serves without authentication", s.Addr)
	err := s.Serve(keepAliveListener{listener})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", s.Addr, err)
}

package remote

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/transport"
)

// Assert sets the headers by which a front proxy asserts u. It removes all other identity
// headers, the credential, and impersonation headers, which this tier has already applied.
func Assert(req *http.Request, u user.Info) {
	for name := range req.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-remote-") || strings.HasPrefix(lower, "impersonate-") {
			delete(req.Header, name)
		}
	}
	req.Header.Del("Authorization")
	stripBearerProtocol(req.Header)
	uid := ""
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.RemoteRequestHeaderUID) {
		uid = u.GetUID()
	}
	transport.SetAuthProxyHeaders(req, u.GetName(), uid, u.GetGroups(), u.GetExtra())
}

// assertContextUser asserts the user in the request's context.
func assertContextUser(req *http.Request) {
	if u, ok := request.UserFrom(req.Context()); ok {
		Assert(req, u)
	}
}

const (
	protocolHeader = "Sec-Websocket-Protocol"
	// bearerProtocol is the prefix of the WebSocket subprotocol with a bearer token: browsers
	// cannot set the Authorization header.
	bearerProtocol = "base64url.bearer.authorization.k8s.io."
)

// stripBearerProtocol removes bearer tokens among the WebSocket subprotocols. A request may contain
// one although another credential has authenticated it.
func stripBearerProtocol(header http.Header) {
	if len(header[protocolHeader]) == 0 {
		return
	}
	var protocols []string
	for _, line := range header[protocolHeader] {
		for protocol := range strings.SplitSeq(line, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.HasPrefix(protocol, bearerProtocol) {
				protocols = append(protocols, protocol)
			}
		}
	}
	if len(protocols) == 0 {
		header.Del(protocolHeader)
		return
	}
	header.Set(protocolHeader, strings.Join(protocols, ","))
}

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

// Assert makes a request one that a front proxy sends on behalf of who. It
// removes whatever else the request says about its sender: identity headers, the
// credential, and impersonation, which has been acted upon before we get here.
func Assert(req *http.Request, who user.Info) {
	for name := range req.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-remote-") || strings.HasPrefix(lower, "impersonate-") {
			delete(req.Header, name)
		}
	}
	req.Header.Del("Authorization")
	stripBearerProtocol(req.Header)
	uid := ""
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.RemoteRequestHeaderUID) {
		uid = who.GetUID()
	}
	transport.SetAuthProxyHeaders(req, who.GetName(), uid, who.GetGroups(), who.GetExtra())
}

// assertUserOf asserts the user in the request's context.
func assertContextUser(req *http.Request) {
	if who, ok := request.UserFrom(req.Context()); ok {
		Assert(req, who)
	}
}

const (
	protocolHeader = "Sec-Websocket-Protocol"
	// bearerProtocol begins the WebSocket protocol in which browsers, which can
	// set no other header, send a bearer token.
	bearerProtocol = "base64url.bearer.authorization.k8s.io."
)

// stripBearerProtocol removes tokens that are disguised as WebSocket protocols. A
// request that another credential has authenticated may still have one.
func stripBearerProtocol(header http.Header) {
	if len(header[protocolHeader]) == 0 {
		return
	}
	var kept []string
	for _, line := range header[protocolHeader] {
		for protocol := range strings.SplitSeq(line, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.HasPrefix(protocol, bearerProtocol) {
				kept = append(kept, protocol)
			}
		}
	}
	if len(kept) == 0 {
		header.Del(protocolHeader)
		return
	}
	header.Set(protocolHeader, strings.Join(kept, ","))
}

package nexttier

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/distrust"
	"triune.dev/shared/transport/handover"
	"triune.dev/shared/transport/tierclient"
)

// kind determines the connection of a request and how its body is copied.
type kind int

const (
	short   kind = iota // a single response
	stream              // an endless response
	upgrade             // another protocol after the headers
	kinds
)

func (k kind) String() string { return [...]string{"short", "stream", "upgrade"}[k] }

// kindOf returns the kind of a request, from its request info if it has one.
func kindOf(req *http.Request) kind {
	if upgradeProtocol(req.Header) != "" {
		return upgrade
	}
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if ok && info.IsResourceRequest {
		switch {
		case info.Verb == "watch", info.Subresource == "proxy":
			return stream
		case info.Subresource == "log" && isTrue(req.URL, "follow"):
			return stream
		}
		return short
	}
	if isWatch(req) || isTrue(req.URL, "follow") {
		return stream
	}
	return short
}

// isWatch reports whether a request is a watch, from its request info if it has one.
func isWatch(req *http.Request) bool {
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
		return info.Verb == "watch"
	}
	return isTrue(req.URL, "watch") || strings.Contains(req.URL.Path, "/watch/")
}

// isTrue parses a boolean query parameter as the API does: it is true if present, except for
// "false" and "0". Most queries do not contain the name at all.
func isTrue(u *url.URL, name string) bool {
	if !strings.Contains(u.RawQuery, name) {
		return false
	}
	values, ok := u.Query()[name]
	if !ok {
		return false
	}
	switch strings.ToLower(values[0]) {
	case "false", "0":
		return false
	}
	return true
}

func upgradeProtocol(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "upgrade") {
		return ""
	}
	return h.Get("Upgrade")
}

const (
	// maxHeaders bounds the path and headers of a request, in bytes, with an overhead of
	// fieldSize per field as in HTTP/2 (RFC 9113, section 6.5.2). Headers of HTTP/1.1 can
	// become much larger in HTTP/2, and a server closes the connection if they exceed its
	// limit, which is slightly higher than this.
	maxHeaders = http.DefaultMaxHeaderBytes
	fieldSize  = 32
)

// outgoing returns the request to send, except for URL.Host, Host and the body. It preserves the
// path and the query of the client byte by byte.
func (p *Proxy) outgoing(req *http.Request, u user.Info, k kind) (*http.Request, error) {
	if req.URL.Path == "" {
		return nil, errNoPath
	}
	header := make(http.Header, len(req.Header)+8)
	size := len(req.URL.Path) + len(req.URL.RawQuery)
	for name, values := range req.Header {
		if len(values) > 0 && !isDropped(name) && !p.identity.isIdentityHeader(name) {
			header[name] = values
			size += fieldSize * len(values)
			for _, value := range values {
				size += len(name) + len(value)
			}
		}
	}
	if p.config.ForwardCredentials {
		if credential := handover.FromContext(req.Context()); credential != nil {
			size += credential.Size()
		}
	}
	if size > maxHeaders {
		return nil, errHeaderTooLarge
	}
	removeNominated(header, req.Header["Connection"])
	if values, ok := header["Sec-Websocket-Protocol"]; ok {
		if values = withoutBearerToken(values); values != nil {
			header["Sec-Websocket-Protocol"] = values
		} else {
			delete(header, "Sec-Websocket-Protocol")
		}
	}
	if httpguts.HeaderValuesContainsToken(req.Header["Te"], "trailers") {
		header["Te"] = []string{"trailers"}
	}
	if k == upgrade {
		header["Connection"] = []string{"Upgrade"}
		header["Upgrade"] = []string{upgradeProtocol(req.Header)}
	}
	if _, ok := header["User-Agent"]; !ok {
		// Otherwise the transport would add its own.
		header["User-Agent"] = []string{""}
	}
	setForwarded(header, req)
	if id, ok := audit.AuditIDFrom(req.Context()); ok && id != "" {
		header[auditinternal.HeaderAuditID] = []string{string(id)}
	}
	header[distrust.ChallengeHeader] = p.challenge
	if err := p.setIdentity(req.Context(), header, u); err != nil {
		return nil, err
	}

	// Only WithContext can copy the context. Clear all fields of server requests.
	out := req.WithContext(req.Context())
	out.URL = &url.URL{Scheme: "https", Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery}
	out.Proto, out.ProtoMajor, out.ProtoMinor = "HTTP/1.1", 1, 1
	out.Header = header
	out.Body, out.GetBody = nil, nil
	out.TransferEncoding, out.Close = nil, false
	out.Form, out.PostForm, out.MultipartForm = nil, nil, nil
	out.RemoteAddr, out.RequestURI, out.Pattern = "", "", ""
	out.TLS, out.Response = nil, nil
	return out, nil
}

// headerSize returns the size of the path and headers as HTTP/2 counts them.
func headerSize(out *http.Request) int64 {
	size := len(out.URL.Path) + len(out.URL.RawQuery)
	for name, values := range out.Header {
		size += (fieldSize + len(name)) * len(values)
		for _, value := range values {
			size += len(value)
		}
	}
	return int64(size)
}

// setIdentity adds the user or its credential.
func (p *Proxy) setIdentity(ctx context.Context, header http.Header, u user.Info) error {
	if !p.config.ForwardCredentials {
		if err := p.identity.setHeaders(header, u); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("assert the identity: %w", err))
		}
		return nil
	}
	if credential := handover.FromContext(ctx); credential != nil {
		credential.SetHeaders(header)
		return nil
	}
	if !tierclient.Own(ctx) {
		return apierrors.NewInternalError(errors.New("no credential in the request's context"))
	}
	return nil
}

// isDropped reports whether a request header is not forwarded: a hop-by-hop header or the
// client's credential.
func isDropped(name string) bool {
	switch name {
	case "Authorization",
		// Reading the body makes the server send 100 Continue.
		"Expect":
		return true
	}
	return isHopByHop(name)
}

// isHopByHop reports whether a header concerns a single connection (RFC 9110, section 7.6.1, and
// other headers in use).
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
		"Proxy-Authenticate", "Proxy-Authorization":
		return true
	}
	return false
}

// removeNominated removes the headers that the client's Connection header nominates, except
// impersonation: a client of an impersonating proxy could otherwise act as that proxy.
func removeNominated(h http.Header, connection []string) {
	for _, list := range connection {
		for name := range strings.SplitSeq(list, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			if name != "" && !strings.HasPrefix(name, "Impersonate-") {
				delete(h, name)
			}
		}
	}
}

// bearerProtocol is the prefix of the WebSocket subprotocol with a bearer token: browsers cannot
// set the Authorization header.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

func withoutBearerToken(values []string) []string {
	var protocols []string
	for _, list := range values {
		for protocol := range strings.SplitSeq(list, ",") {
			if protocol = textproto.TrimString(protocol); protocol != "" && !strings.HasPrefix(protocol, bearerProtocol) {
				protocols = append(protocols, protocol)
			}
		}
	}
	if len(protocols) == 0 {
		return nil
	}
	return []string{strings.Join(protocols, ", ")}
}

// setForwarded adds the client's address, from which the next tier, behind its authentication,
// makes the request that of the client again.
func setForwarded(h http.Header, req *http.Request) {
	ip, port, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		return
	}
	if prior := req.Header["X-Forwarded-For"]; len(prior) > 0 {
		ip = strings.Join(prior, ", ") + ", " + ip
	}
	values := [2]string{ip, port}
	h["X-Forwarded-For"] = values[0:1:1]
	h[tierclient.ClientPortHeader] = values[1:2:2]
}

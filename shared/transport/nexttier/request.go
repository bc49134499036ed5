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

// kind decides which connection a request gets and how it is copied.
type kind int

const (
	short   kind = iota // one answer, soon
	stream              // an answer without an end
	upgrade             // no HTTP any more after the header
	kinds
)

func (k kind) String() string { return [...]string{"short", "stream", "upgrade"}[k] }

// kindOf looks at the request and, where there is one, its request info.
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
	if isTrue(req.URL, "watch") || isTrue(req.URL, "follow") || strings.Contains(req.URL.Path, "/watch/") {
		return stream
	}
	return short
}

// isTrue reads a boolean query parameter as the API does: present means true,
// unless it says otherwise. Most queries do not even contain the name.
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
	// maxHeaders bounds the path and headers of a client, in bytes as HTTP/2 counts them: of
	// each field fieldSize more than its characters (RFC 9113, section 6.5.2). Over HTTP/1.1
	// they can come out many times as large, and a server ends the connection on which it is
	// sent much more than it accepts, which is as much as this and a bit.
	maxHeaders = http.DefaultMaxHeaderBytes
	fieldSize  = 32
)

// outgoing returns the request to send, complete but for URL.Host and Host,
// which the replica fills in, and the body. The path and the query are those of
// the client, byte for byte.
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
	if p.config.HandOver {
		if credential := handover.From(req.Context()); credential != nil {
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
		// Otherwise the transport would invent one.
		header["User-Agent"] = []string{""}
	}
	setForwarded(header, req)
	if id, ok := audit.AuditIDFrom(req.Context()); ok && id != "" {
		header[auditinternal.HeaderAuditID] = []string{string(id)}
	}
	header[distrust.Challenge] = p.challenge
	if err := p.setIdentity(req.Context(), header, u); err != nil {
		return nil, err
	}

	// WithContext is the one way to a request with this context; of the copy it
	// makes nothing that belongs to the server side may stay.
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

// headSize is how many bytes the path and headers of a request have, as HTTP/2 counts them.
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

// identify adds what the next tier knows the user by.
func (p *Proxy) setIdentity(ctx context.Context, header http.Header, u user.Info) error {
	if !p.config.HandOver {
		if err := p.identity.setHeaders(header, u); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("assert the identity: %w", err))
		}
		return nil
	}
	if credential := handover.From(ctx); credential != nil {
		credential.Add(header)
		return nil
	}
	if !tierclient.Own(ctx) {
		return apierrors.NewInternalError(errors.New("no credential in the request's context"))
	}
	return nil
}

// dropped reports whether a header of a request stays here: it concerns one hop,
// or is the client's credential.
func isDropped(name string) bool {
	switch name {
	case "Authorization",
		// The server answers 100 Continue itself once the body is read.
		"Expect":
		return true
	}
	return isHopByHop(name)
}

// hopByHop are the headers that concern one connection (RFC 9110 section 7.6.1,
// and what is in use besides).
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
		"Proxy-Authenticate", "Proxy-Authorization":
		return true
	}
	return false
}

// removeNominated removes what the client's Connection header names, except
// what decides about the identity: otherwise a client behind a proxy that
// impersonates could strip the impersonation and act as that proxy.
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

// bearerProtocol starts the WebSocket subprotocol that carries a bearer token,
// for browsers cannot set headers.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

func withoutBearerToken(values []string) []string {
	var kept []string
	for _, list := range values {
		for protocol := range strings.SplitSeq(list, ",") {
			if protocol = textproto.TrimString(protocol); protocol != "" && !strings.HasPrefix(protocol, bearerProtocol) {
				kept = append(kept, protocol)
			}
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return []string{strings.Join(kept, ", ")}
}

// forwarded says where the request came from, in the headers that audit and the
// proxies of pods and Services read.
func setForwarded(h http.Header, req *http.Request) {
	values := make([]string, 3)
	if ip, _, err := net.SplitHostPort(req.RemoteAddr); err == nil {
		if prior := req.Header["X-Forwarded-For"]; len(prior) > 0 {
			ip = strings.Join(prior, ", ") + ", " + ip
		}
		values[0] = ip
		h["X-Forwarded-For"] = values[0:1:1]
	}
	if req.Host != "" {
		values[1] = req.Host
		h["X-Forwarded-Host"] = values[1:2:2]
	}
	values[2] = "http"
	if req.TLS != nil {
		values[2] = "https"
	}
	h["X-Forwarded-Proto"] = values[2:3:3]
}

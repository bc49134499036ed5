package h2

import (
	"context"
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

var errMalformed = errors.New("h2: malformed request")

// malformed returns the stream error of a malformed request (RFC 9113, section 8.1.1).
func (s *stream) malformed() error {
	return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol, Cause: errMalformed}
}

// emptyRequest is copied with WithContext for each request.
var emptyRequest http.Request

// newRequest builds the request from a header block (RFC 9113, section 8.3.1).
func (s *stream) newRequest(f *headerBlock) error {
	if f.pseudo.protocol.value != "" {
		return s.malformed() // extended CONNECT is not offered (RFC 8441, section 4)
	}
	var header regularFields
	if !header.parse(f) {
		return s.malformed()
	}
	method, authority, host := f.pseudo.method.value, f.pseudo.authority.value, header.host
	if len(host) == 1 && authority == "" {
		authority = host[0]
	}
	// Section 8.3.1: other servers must not interpret the target differently.
	if method == "" || len(host) > 1 || len(host) == 1 && host[0] != authority || !httpguts.ValidHostHeader(authority) {
		return s.malformed()
	}
	address, target := parseTarget(method, f.pseudo.scheme.value, authority, f.pseudo.path.value)
	if address == nil {
		return s.malformed()
	}

	s.requestEnded = f.endStream
	ctx, cancel := context.WithCancel(s.conn.ctx)
	s.cancel = cancel
	request := emptyRequest.WithContext(ctx)
	request.Method, request.URL, request.RequestURI, request.Host = method, address, target, authority
	request.Proto, request.ProtoMajor = "HTTP/2.0", 2
	request.Header, request.Trailer = header.fields, header.trailer
	request.ContentLength, request.Body = header.contentLength, http.NoBody
	request.RemoteAddr, request.TLS = s.conn.remote, s.conn.tls
	if !s.requestEnded {
		s.body = &body{
			stream: s, recvWindow: int64(s.conn.server.MaxUploadPerStream),
			contentLength: header.contentLength, expectContinue: header.expectsContinue,
		}
		s.body.readable.L = &s.conn.mu
		request.Body = s.body
	}
	s.request = request
	return nil
}

// parseTarget returns the URL of a request and its request target, or nil if they are malformed.
func parseTarget(method, scheme, authority, path string) (address *url.URL, target string) {
	if method == http.MethodConnect {
		if path != "" || scheme != "" || authority == "" {
			return nil, "" // section 8.5
		}
		return &url.URL{Host: authority}, authority
	}
	if !strings.HasPrefix(path, "/") && path != "*" || scheme != "https" && scheme != "http" || strings.Contains(authority, "@") {
		return nil, "" // section 8.3.1
	}
	address, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, ""
	}
	return address, path
}

// regularFields are the header fields of a request that are not pseudo-header fields.
type regularFields struct {
	fields, trailer http.Header
	host            []string
	contentLength   int64 // -1 if unknown
	expectsContinue bool
}

// parse parses the fields of a header block, and reports whether they are well-formed.
func (h *regularFields) parse(f *headerBlock) bool {
	h.contentLength = -1
	if f.endStream {
		h.contentLength = 0
	}
	var cookies []string // if there is more than one Cookie field
	h.fields = make(http.Header, len(f.regular))
	values := make([]string, 0, len(f.regular)) // backing array of single values
	for _, field := range f.regular {
		ok, consumed := h.parseSpecial(f, field)
		if !ok {
			return false
		}
		if consumed {
			continue
		}
		key := canonical(field.Name)
		if was, ok := h.fields[key]; ok {
			switch field.Name {
			case "content-length":
			case "cookie":
				if cookies == nil {
					cookies = append(cookies, was[0])
				}
				cookies = append(cookies, field.Value)
			default:
				h.fields[key] = append(was, field.Value)
			}
			continue
		}
		values = append(values, field.Value)
		h.fields[key] = values[len(values)-1 : len(values) : len(values)]
	}
	if cookies != nil {
		h.fields["Cookie"] = []string{strings.Join(cookies, "; ")} // section 8.2.3
	}
	return true
}

// parseSpecial parses a field that says something about the message or the connection.
// consumed reports that handlers do not see it, ok whether it is well-formed.
func (h *regularFields) parseSpecial(f *headerBlock, field hpack.HeaderField) (ok, consumed bool) {
	switch field.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return false, false // section 8.2.2
	case "te":
		return field.Value == "trailers", false
	case "host":
		h.host = append(h.host, field.Value)
		return true, true
	case "content-length":
		n, err := strconv.ParseUint(field.Value, 10, 63)
		if err != nil || f.endStream && n > 0 && !f.truncated {
			return false, false
		}
		if was, ok := h.fields["Content-Length"]; ok && was[0] != field.Value {
			return false, false
		}
		h.contentLength = int64(n)
	case "expect":
		if httpguts.HeaderValuesContainsToken([]string{field.Value}, "100-continue") {
			h.expectsContinue = true
			return true, true
		}
	case "trailer":
		h.trailer = addTrailerNames(h.trailer, field.Value)
		return true, true
	}
	return true, false
}

// addTrailerNames adds the announced trailer names that are allowed (RFC 9110, section 6.5.1).
func addTrailerNames(trailer http.Header, names string) http.Header {
	for name := range strings.SplitSeq(names, ",") {
		key := textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
		if !httpguts.ValidTrailerHeader(key) {
			continue
		}
		if trailer == nil {
			trailer = http.Header{}
		}
		trailer[key] = nil
	}
	return trailer
}

// headersTooLarge answers requests whose header list exceeds the limit; their headers are
// incomplete.
func headersTooLarge(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "request header fields too large", http.StatusRequestHeaderFieldsTooLarge)
}

// headerNames maps common header names between their canonical and lower-case forms.
var headerNames = sync.OnceValue(func() (n struct{ canonical, lower map[string]string }) {
	n.canonical, n.lower = map[string]string{}, map[string]string{}
	for _, key := range []string{
		"Accept", "Accept-Encoding", "Audit-Id", "Authorization", "Cache-Control", "Content-Encoding", "Content-Length",
		"Content-Type", "Cookie", "Date", "Etag", "If-None-Match", "Impersonate-Group", "Impersonate-User", "Last-Modified",
		"Location", "Retry-After", "Strict-Transport-Security", "Traceparent", "User-Agent", "Vary", "Warning", "Www-Authenticate",
		"X-Content-Type-Options", "X-Forwarded-For", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
		"X-Remote-Challenge", "X-Remote-Group", "X-Remote-User",
	} {
		low := strings.ToLower(key)
		n.canonical[low], n.lower[key] = key, low
	}
	return n
})

// canonical returns the canonical form of a lower-case header name, as in net/http.
func canonical(lower string) string {
	if key, ok := headerNames().canonical[lower]; ok {
		return key
	}
	return textproto.CanonicalMIMEHeaderKey(lower)
}

// lower returns the lower-case form of a header name, as in HTTP/2 (RFC 9113, section 8.2.1).
func lower(key string) string {
	if low, ok := headerNames().lower[key]; ok {
		return low
	}
	return strings.ToLower(key)
}

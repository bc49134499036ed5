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
	method, path := f.pseudo.method.value, f.pseudo.path.value
	scheme, authority := f.pseudo.scheme.value, f.pseudo.authority.value
	if f.pseudo.protocol.value != "" {
		return s.malformed() // extended CONNECT is not offered (RFC 8441, section 4)
	}
	regular := f.regular
	length := int64(-1)
	if f.endStream {
		length = 0
	}
	expects := false
	var host []string
	var trailer http.Header
	var cookies []string // if there is more than one Cookie field
	header := make(http.Header, len(regular))
	values := make([]string, 0, len(regular)) // backing array of single values
	for _, field := range regular {
		switch field.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return s.malformed() // section 8.2.2
		case "te":
			if field.Value != "trailers" {
				return s.malformed()
			}
		case "host":
			host = append(host, field.Value)
			continue
		case "content-length":
			n, err := strconv.ParseUint(field.Value, 10, 63)
			if err != nil || f.endStream && n > 0 && !f.truncated {
				return s.malformed()
			}
			if was, ok := header["Content-Length"]; ok && was[0] != field.Value {
				return s.malformed()
			}
			length = int64(n)
		case "expect":
			if httpguts.HeaderValuesContainsToken([]string{field.Value}, "100-continue") {
				expects = true
				continue
			}
		case "trailer":
			trailer = addTrailerNames(trailer, field.Value)
			continue
		}
		key := canonical(field.Name)
		if was, ok := header[key]; ok {
			switch field.Name {
			case "content-length":
			case "cookie":
				if cookies == nil {
					cookies = append(cookies, was[0])
				}
				cookies = append(cookies, field.Value)
			default:
				header[key] = append(was, field.Value)
			}
			continue
		}
		values = append(values, field.Value)
		header[key] = values[len(values)-1 : len(values) : len(values)]
	}

	if cookies != nil {
		header["Cookie"] = []string{strings.Join(cookies, "; ")} // section 8.2.3
	}

	if len(host) == 1 && authority == "" {
		authority = host[0]
	}
	// Section 8.3.1: other servers must not interpret the target differently.
	if method == "" || len(host) > 1 || len(host) == 1 && host[0] != authority || !httpguts.ValidHostHeader(authority) {
		return s.malformed()
	}
	address := &url.URL{Host: authority}
	target := authority
	if method == http.MethodConnect {
		if path != "" || scheme != "" || authority == "" {
			return s.malformed() // section 8.5
		}
	} else {
		if !strings.HasPrefix(path, "/") && path != "*" || scheme != "https" && scheme != "http" || strings.Contains(authority, "@") {
			return s.malformed() // section 8.3.1
		}
		var err error
		if address, err = url.ParseRequestURI(path); err != nil {
			return s.malformed()
		}
		target = path
	}

	s.requestEnded = f.endStream
	ctx, cancel := context.WithCancel(s.conn.ctx)
	s.cancel = cancel
	request := emptyRequest.WithContext(ctx)
	request.Method, request.URL, request.RequestURI, request.Host = method, address, target, authority
	request.Proto, request.ProtoMajor = "HTTP/2.0", 2
	request.Header, request.Trailer = header, trailer
	request.ContentLength, request.Body = length, http.NoBody
	request.RemoteAddr, request.TLS = s.conn.remote, s.conn.tls
	if !s.requestEnded {
		s.body = &body{stream: s, recvWindow: int64(s.conn.server.MaxUploadPerStream), contentLength: length, expectContinue: expects}
		s.body.readable.L = &s.conn.mu
		request.Body = s.body
	}
	s.request = request
	return nil
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

package openapi

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/klog/v2"
)

// mediaType is a media type that clients may request, and how it is served.
type mediaType struct {
	subtype  string
	encoding encoding
	answer   string
}

// The media types with @ were defined first, but a media type must not contain it (RFC 6838,
// section 4.2). They are accepted and answered with their successors.
var (
	mediaTypesV2 = []mediaType{
		{"json", inJSON, "application/json"},
		{"com.github.proto-openapi.spec.v2@v1.0+protobuf", inProtobuf, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"},
		{"com.github.proto-openapi.spec.v2.v1.0+protobuf", inProtobuf, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"},
	}
	mediaTypesV3 = []mediaType{
		{"json", inJSON, "application/json"},
		{"com.github.proto-openapi.spec.v3.v1.0+protobuf", inProtobuf, "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"},
		{"com.github.proto-openapi.spec.v3@v1.0+protobuf", inProtobuf, "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"},
	}
)

// negotiate returns the first of the offered media types in the client's order of preference.
func negotiate(accept string, offered []mediaType) (mediaType, bool) {
	if accept == "" {
		accept = "*/*"
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		for _, offer := range offered {
			if clause.SubType == offer.subtype || clause.SubType == "*" {
				return offer, true
			}
		}
	}
	return mediaType{}, false
}

// ServeHTTP serves PathV2, PathV3 and everything below PathV3. It answers 404 for unknown
// documents and 406 for unsupported media types.
func (d *Documents) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch path := req.URL.Path; {
	case path == PathV2:
		d.ServeV2(w, req)
	case path == PathV3:
		d.ServeIndex(w, req)
	case strings.HasPrefix(path, PathV3+"/"):
		d.ServeV3(w, req)
	default:
		http.NotFound(w, req)
	}
}

// ServeV2 serves the v2 document.
func (d *Documents) ServeV2(w http.ResponseWriter, req *http.Request) {
	document := d.documentV2()
	if document == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Add("Vary", "Accept-Encoding")
	w.Header().Add("Vary", "Accept")
	media, ok := negotiate(req.Header.Get("Accept"), mediaTypesV2)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	d.send(w, req, document, media)
}

// ServeIndex serves the v3 index. It builds the documents whose sources have no tag.
func (d *Documents) ServeIndex(w http.ResponseWriter, req *http.Request) {
	w.Header().Add("Vary", "Accept-Encoding")
	d.send(w, req, d.indexV3(), mediaTypesV3[0])
}

// ServeV3 serves the v3 document of the request's path. A URL with an outdated hash is
// redirected to that with the current hash, whose content may be cached forever.
func (d *Documents) ServeV3(w http.ResponseWriter, req *http.Request) {
	path := strings.TrimPrefix(req.URL.Path, PathV3+"/")
	document := d.documentV3(path)
	if document == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Add("Vary", "Accept")
	media, ok := negotiate(req.Header.Get("Accept"), mediaTypesV3)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	if hash := req.URL.Query().Get("hash"); hash != "" {
		tag := document.knownTag()
		if tag == "" {
			var err error
			if _, tag, err = document.get(media.encoding); err != nil {
				unavailable(w, req, err)
				return
			}
		}
		if hash != tag {
			describe(w, media, tag)
			http.Redirect(w, req, urlV3(path, tag), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	w.Header().Add("Vary", "Accept-Encoding")
	d.send(w, req, document, media)
}

// send sends a document, or 304 if the client has it. Clients that accept gzip get the stored
// compressed form.
func (d *Documents) send(w http.ResponseWriter, req *http.Request, document *document, media mediaType) {
	if tag := document.knownTag(); tag != "" && matches(req.Header.Get("If-None-Match"), tag) {
		describe(w, media, tag)
		w.WriteHeader(http.StatusNotModified)
		return
	}
	content, tag, err := document.get(media.encoding)
	if err != nil {
		unavailable(w, req, err)
		return
	}
	describe(w, media, tag)
	var body io.ReadSeeker = &decompressor{compressed: content}
	if acceptsGzip(req.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
		body = bytes.NewReader(content.gzip)
	}
	http.ServeContent(w, req, "", d.started, body)
}

func describe(w http.ResponseWriter, media mediaType, tag string) {
	w.Header().Set("Content-Type", media.answer)
	w.Header().Set("Etag", strconv.Quote(tag))
}

func unavailable(w http.ResponseWriter, req *http.Request, err error) {
	klog.FromContext(req.Context()).Error(err, "no openapi document", "path", req.URL.Path)
	w.WriteHeader(http.StatusServiceUnavailable)
}

// matches reports whether an If-None-Match header matches the tag by weak comparison (RFC 9110,
// section 13.1.2).
func matches(header, tag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == "*" || candidate == strconv.Quote(tag) {
			return true
		}
	}
	return false
}

// acceptsGzip reports whether an Accept-Encoding header names gzip with a weight other than
// zero (RFC 9110, section 12.5.3).
func acceptsGzip(header string) bool {
	for coding := range strings.SplitSeq(header, ",") {
		name, weight, weighted := strings.Cut(coding, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		if !weighted {
			return true
		}
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
		return err == nil && q > 0
	}
	return false
}

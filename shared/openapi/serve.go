package openapi

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/klog/v2"
)

// mediaType is a media type that a client may ask for, and what it gets.
type mediaType struct {
	subtype  string
	encoding encoding
	answer   string
}

// The media types with @ came first, but a media type cannot have one in it
// (RFC 6838, 4.2); they are understood and answered with the later ones.
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

// negotiate returns the first media type offered that the client accepts, in the
// client's order of preference.
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

// ServeHTTP answers requests for PathV2, PathV3 and everything below PathV3; 404
// for what is not there, 406 for a media type that no document has.
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

// ServeV2 answers with the v2 document.
func (d *Documents) ServeV2(w http.ResponseWriter, req *http.Request) {
	document := d.documentV2()
	if document == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Add("Vary", "Accept")
	media, ok := negotiate(req.Header.Get("Accept"), mediaTypesV2)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	content, tag, err := document.get(media.encoding)
	if err != nil {
		klog.ErrorS(err, "building the openapi v2 document")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	d.send(w, req, content, tag, media.answer)
}

// ServeIndex answers with the v3 index. Documents whose sources have no tag are
// built for it.
func (d *Documents) ServeIndex(w http.ResponseWriter, req *http.Request) {
	content, tag, err := d.indexV3().get(inJSON)
	if err != nil {
		klog.ErrorS(err, "building the openapi v3 index")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	d.send(w, req, content, tag, "application/json")
}

// ServeV3 answers with the v3 document of the request's path. A URL with a hash
// that is not the document's is redirected to the one with the right hash; what
// comes from there may be cached for ever.
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
	content, tag, err := document.get(media.encoding)
	if err != nil {
		klog.ErrorS(err, "building an openapi v3 document", "path", path)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch hash := req.URL.Query().Get("hash"); hash {
	case "":
	case tag:
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	default:
		w.Header().Set("Content-Type", media.answer)
		w.Header().Set("Etag", strconv.Quote(tag))
		http.Redirect(w, req, urlV3(path, tag), http.StatusMovedPermanently)
		return
	}
	d.send(w, req, content, tag, media.answer)
}

// send answers with a document, or with 304 when the client has it. Clients that
// accept gzip get the compressed form that is at hand.
func (d *Documents) send(w http.ResponseWriter, req *http.Request, content packed, tag, mediaType string) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Etag", strconv.Quote(tag))
	w.Header().Add("Vary", "Accept-Encoding")
	body := content.gzip
	if acceptsGzip(req.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
	} else {
		var err error
		if body, err = content.unpack(); err != nil {
			klog.ErrorS(err, "serving an openapi document", "path", req.URL.Path)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
	}
	http.ServeContent(w, req, "", d.started, bytes.NewReader(body))
}

// acceptsGzip tells whether a value of Accept-Encoding names gzip and does not
// forbid it with a weight of zero (RFC 9110, 12.5.3).
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

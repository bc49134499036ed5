package table

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// The answers to requests that no handler takes. Code, reason and message are
// kube-apiserver's; there they come out of its router.

func (v *GroupVersion) notFound(w http.ResponseWriter, req *http.Request) {
	v.refuse(w, req, http.StatusNotFound, "404: Page Not Found")
}

func (v *GroupVersion) methodNotAllowed(w http.ResponseWriter, req *http.Request) {
	v.refuse(w, req, http.StatusMethodNotAllowed, "405: Method Not Allowed")
}

func (v *GroupVersion) refuse(w http.ResponseWriter, req *http.Request, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
	responsewriters.ErrorNegotiated(err, v.Serializer, schema.GroupVersion{}, w, req)
}

// negotiable answers 415 or 406 and returns false when the media types of the
// request and of the route have none in common. Parameters such as q and as do
// not count here; the handler looks at them.
func (v *GroupVersion) negotiable(w http.ResponseWriter, req *http.Request, route *Route) bool {
	if !consumable(route, req) {
		v.refuse(w, req, http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
		return false
	}
	if !acceptable(route, req.Header.Get("Accept")) {
		v.refuse(w, req, http.StatusNotAcceptable,
			"406: Not Acceptable\n\nAvailable representations: "+strings.Join(route.Produces, ", "))
		return false
	}
	return true
}

func consumable(route *Route, req *http.Request) bool {
	if len(route.Consumes) == 0 {
		return true
	}
	contentType := req.Header.Get("Content-Type")
	for mediaType := range mediaTypesIn(contentType) {
		if slices.Contains(route.Consumes, mediaType) {
			return true
		}
	}
	return false
}

func acceptable(route *Route, accept string) bool {
	if accept == "" {
		return true
	}
	for mediaType := range mediaTypesIn(accept) {
		if mediaType == "*/*" || slices.Contains(route.Produces, mediaType) || slices.Contains(route.Produces, "*/*") {
			return true
		}
	}
	return false
}

// mediaTypesIn yields the media types of a header's value without their
// parameters.
func mediaTypesIn(header string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(header, ",") {
			mediaType, _, _ := strings.Cut(part, ";")
			if !yield(strings.TrimSpace(mediaType)) {
				return
			}
		}
	}
}

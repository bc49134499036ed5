package resources

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// Responses to requests that no handler serves. Code, reason and message equal those of
// kube-apiserver's router.

func (v *GroupVersion) notFound(w http.ResponseWriter, req *http.Request) {
	refuse(w, req, v.Serializer, refusal{http.StatusNotFound, "404: Page Not Found"})
}

func (v *GroupVersion) methodNotAllowed(w http.ResponseWriter, req *http.Request) {
	refuse(w, req, v.Serializer, refusal{http.StatusMethodNotAllowed, "405: Method Not Allowed"})
}

type refusal struct {
	code    int
	message string
}

func refuse(w http.ResponseWriter, req *http.Request, s runtime.NegotiatedSerializer, r refusal) {
	err := apierrors.NewGenericServerResponse(r.code, "", schema.GroupResource{}, "", r.message, 0, false)
	responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{}, w, req)
}

// Media holds the media types of a route.
type Media struct {
	// Consumes lists the media types of a request body if the route restricts them, and
	// Produces those of the response. Nil leaves the choice to the handler.
	Consumes, Produces []string
}

// Negotiable reports whether the route supports media types of the request. If not, it answers
// 415 or 406, with an error encoded by s. It ignores parameters such as q and as, which the
// handler evaluates.
func (m Media) Negotiable(w http.ResponseWriter, req *http.Request, s runtime.NegotiatedSerializer) bool {
	if !m.consumable(req) {
		refuse(w, req, s, refusal{http.StatusUnsupportedMediaType, "415: Unsupported Media Type"})
		return false
	}
	if !m.acceptable(req.Header.Get("Accept")) {
		refuse(w, req, s, refusal{http.StatusNotAcceptable,
			"406: Not Acceptable\n\nAvailable representations: " + strings.Join(m.Produces, ", ")})
		return false
	}
	return true
}

func (m Media) consumable(req *http.Request) bool {
	contentType := req.Header.Get("Content-Type")
	if len(m.Consumes) == 0 || contentType == "" && req.Method == http.MethodGet {
		return true
	}
	for mediaType := range mediaTypesIn(contentType) {
		if slices.Contains(m.Consumes, mediaType) {
			return true
		}
	}
	return false
}

func (m Media) acceptable(accept string) bool {
	if len(m.Produces) == 0 || accept == "" {
		return true
	}
	for mediaType := range mediaTypesIn(accept) {
		if mediaType == "*/*" || slices.Contains(m.Produces, mediaType) || slices.Contains(m.Produces, "*/*") {
			return true
		}
	}
	return false
}

// mediaTypesIn yields the media types of a header without their parameters.
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

package apiserver

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/handover"
	"triune.dev/shared/transport/nexttier"
)

// BehindPrefix is the prefix of what a tier tells about the processes behind it:
//
//	/triune/next/                   the next tier and its replicas, a [Behind]
//	/triune/next/<address>/metrics  what one of them answers to /metrics
//	/triune/next/<address>/triune/next/  and what is behind that one
//
// Only documents can be asked for (documentsBehind). The serving tier authenticates,
// authorizes and audits the request for the document, as this tier does the request for the
// longer path. If it gets the client's credential for that, the request must not impersonate,
// because the credential grants what the client itself may do.
const BehindPrefix = "/triune/next/"

// documentsBehind are the documents that can be asked for, or their prefixes.
var documentsBehind = []string{"/metrics", "/version", "/healthz", "/livez", "/livez/", "/readyz", "/readyz/", BehindPrefix}

// Behind describes the next tier.
type Behind struct {
	Tier     string             `json:"tier"`
	Replicas []nexttier.Replica `json:"replicas"`
}

// serveBehind serves BehindPrefix.
func (s *Server) serveBehind(w http.ResponseWriter, req *http.Request) {
	next := s.config.Next
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		s.writeStatus(w, req, http.StatusMethodNotAllowed)
		return
	}
	address, document, ok := strings.Cut(strings.TrimPrefix(req.URL.Path, BehindPrefix), "/")
	if address == "" {
		responsewriters.WriteRawJSON(http.StatusOK, Behind{next.Tier, next.Replicas()}, w)
		return
	}
	document = "/" + document
	known := slices.ContainsFunc(next.Replicas(), func(r nexttier.Replica) bool { return r.Address == address })
	if !ok || !known || !isDocumentBehind(document) {
		s.writeStatus(w, req, http.StatusNotFound)
		return
	}
	if next.NeedsCredentials && handover.FromContext(req.Context()) == nil {
		err := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("the next tier authenticates its clients itself, so the request must not impersonate"))
		responsewriters.ErrorNegotiated(err, s.config.Generic.Serializer, schema.GroupVersion{}, w, req)
		return
	}
	inner := req.Clone(nexttier.ToReplica(req.Context(), address))
	inner.URL.Path, inner.URL.RawPath = document, ""
	info, err := s.config.Generic.RequestInfoResolver.NewRequestInfo(inner)
	if err != nil {
		s.writeStatus(w, req, http.StatusNotFound)
		return
	}
	next.Handler.ServeHTTP(w, inner.WithContext(apirequest.WithRequestInfo(inner.Context(), info)))
}

// isDocumentBehind reports whether a path is one of documentsBehind, or below one that ends
// in a slash.
func isDocumentBehind(path string) bool {
	return !strings.Contains(path, "..") && slices.ContainsFunc(documentsBehind, func(document string) bool {
		return path == document || strings.HasSuffix(document, "/") && strings.HasPrefix(path, document)
	})
}

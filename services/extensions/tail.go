package extensions

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/services/extensions/internal/customresource"
	"triune.dev/services/extensions/internal/discovery"
	"triune.dev/services/extensions/internal/scheme"
)

// tail handles requests without a route: custom resources, their discovery documents, and
// 404.
type tail struct {
	objects   *customresource.Handler
	documents *discovery.Publisher
	// known is closed when the CRDs that existed at the start are served, ended before
	// custom resources are closed.
	known, ended chan struct{}
}

func newTail() *tail { return &tail{known: make(chan struct{}), ended: make(chan struct{})} }

// complete must be called before the first request.
func (t *tail) complete(objects *customresource.Handler, documents *discovery.Publisher) {
	t.objects, t.documents = objects, documents
}

func (t *tail) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
		t.objects.ServeHTTP(w, req)
		return
	}
	if document, ok := t.documents.Find(req.URL.Path); ok {
		document.ServeHTTP(w, req)
		return
	}
	t.notFound(w, req)
}

// retryAfter is the number of seconds that kube-apiserver tells clients to wait.
const retryAfter = 5

// notFound answers 404, or 503 while the CRDs are unknown: a controller that gets 404 for an
// existing path may delete objects by mistake.
func (t *tail) notFound(w http.ResponseWriter, req *http.Request) {
	select {
	case <-t.ended:
		unavailable(w, req, "the server is shutting down")
		return
	default:
	}
	select {
	case <-t.known:
		refuse(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(req.Method), schema.GroupResource{}, "", "", 0, false))
	default:
		unavailable(w, req, "the request has been made before all known HTTP paths have been installed, please try again")
	}
}

func unavailable(w http.ResponseWriter, req *http.Request, message string) {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	refuse(w, req, err)
}

func refuse(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, scheme.Codecs, schema.GroupVersion{}, w, req)
}

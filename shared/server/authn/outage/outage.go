// Package outage distinguishes a wrong credential from one that could not be verified.
//
// An authenticator can only return an error, and the filter that calls it answers every
// error with 401. Then a client regards its credential as worthless: client-go drops it,
// and kubectl asks for another. While the tier that verifies tokens is not available, the
// right answer is 503, so that the client retries. For that the handler chain prepares the
// request's context with [Track], the authenticator calls [Report], and the handler of
// unauthenticated requests, [Refuse], answers 503 if there was a report.
package outage

import (
	"context"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// retryAfter is the number of seconds after which clients should retry.
const retryAfter = 1

type key struct{}

// report holds the message of the first call of Report.
type report struct{ message atomic.Pointer[string] }

// Track returns a context on which Report may be called.
func Track(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, &report{}) }

// Report records why the credential of a request could not be verified, in a message for
// the client. If ctx does not come from Track, it does nothing. It is safe for concurrent
// use.
func Report(ctx context.Context, message string) {
	if r, ok := ctx.Value(key{}).(*report); ok {
		r.message.CompareAndSwap(nil, &message)
	}
}

// Refuse answers requests with a report with 503 and Retry-After, and passes all others to
// next.
func Refuse(serializer runtime.NegotiatedSerializer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r, ok := req.Context().Value(key{}).(*report)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		message := r.message.Load()
		if message == nil {
			next.ServeHTTP(w, req)
			return
		}
		err := apierrors.NewServiceUnavailable(*message)
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
		var version schema.GroupVersion
		if info, ok := request.RequestInfoFrom(req.Context()); ok {
			version = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		}
		responsewriters.ErrorNegotiated(err, serializer, version, w, req)
	})
}

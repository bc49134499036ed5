// Package outage tells "this credential is wrong" from "nobody could be asked
// about it".
//
// An authenticator can only return an error, and the filter that calls it answers
// every error with 401. To a client that means its credential is worthless:
// client-go drops it, kubectl asks for another. When the tier that knows tokens is
// away, 503 is the truth, and the client comes back. So the handler chain puts a
// note into the request's context with [Track], the authenticator writes on it
// with [Report], and the handler of refused requests reads it with [Refuse].
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

// retryAfter is how many seconds clients are asked to wait. The next tier may be
// back as soon as that.
const retryAfter = 1

type key struct{}

// note holds the message of the first report.
type note struct{ message atomic.Pointer[string] }

// Track returns the context of a request about which there may be a report.
func Track(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, &note{}) }

// Report notes why the credential of the request that ctx belongs to could not be
// examined, in words for the client. Without Track it does nothing. It may be
// called from any goroutine.
func Report(ctx context.Context, message string) {
	if n, ok := ctx.Value(key{}).(*note); ok {
		n.message.CompareAndSwap(nil, &message)
	}
}

// Refuse answers requests that have been reported with 503 and Retry-After, and
// gives all others to next.
func Refuse(serializer runtime.NegotiatedSerializer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n, ok := req.Context().Value(key{}).(*note)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		message := n.message.Load()
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

package chain

import (
	"net/http"
	"reflect"
	"time"

	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/httplog"
	"k8s.io/component-base/tracing"
	"k8s.io/klog/v2"
)

// step is the filter that a request is in. It belongs to the one goroutine that
// handles the request at a time.
type step struct {
	name  string
	began time.Time
}

type stepKey struct{}

// slowStep is how long a filter takes that the request's log line names, as
// kube-apiserver's does.
const slowStep = 100 * time.Millisecond

// untraced tells whether traces go nowhere, which is the default.
func untraced(provider tracing.TracerProvider) bool {
	return reflect.TypeOf(provider) == reflect.TypeOf(tracing.NewNoopTracerProvider())
}

// began marks where a filter begins, for apiserver_request_filter_duration_seconds
// and the span of that name. Without traces there is no span, and so no need of a
// request of its own for each filter to carry it.
func began(handler http.Handler, provider tracing.TracerProvider, name string) http.Handler {
	if !untraced(provider) {
		return filterlatency.TrackStarted(handler, provider, name)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s, ok := req.Context().Value(stepKey{}).(*step); ok {
			s.name, s.began = name, time.Now()
		}
		handler.ServeHTTP(w, req)
	})
}

// ended marks where the filter that began last has passed the request on.
func ended(handler http.Handler, provider tracing.TracerProvider) http.Handler {
	if !untraced(provider) {
		return filterlatency.TrackCompleted(handler)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		if s, ok := ctx.Value(stepKey{}).(*step); ok && s.name != "" {
			took := time.Since(s.began)
			metrics.RecordFilterLatency(ctx, s.name, took)
			if took > slowStep && klog.V(3).Enabled() {
				httplog.AddKeyValue(ctx, "fl_"+s.name, took.String())
			}
		}
		handler.ServeHTTP(w, req)
	})
}

package filters

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

// slowFilter is the latency from which a filter is named in the request's log line, as in
// kube-apiserver.
const slowFilter = 100 * time.Millisecond

// timing is the name of a filter and the time at which it started.
type timing struct {
	name    string
	started time.Time
}

// tracingEnabled reports whether traces go anywhere. By default they do not.
func tracingEnabled(provider tracing.TracerProvider) bool {
	return reflect.TypeOf(provider) != reflect.TypeOf(tracing.NewNoopTracerProvider())
}

// trackStarted marks where a filter starts, for apiserver_request_filter_duration_seconds
// and the span of the same name. Without tracing there is no span, and the request need
// not be copied to carry it.
func trackStarted(provider tracing.TracerProvider, name string) filter {
	return filter{
		wrap: func(next http.Handler) http.Handler { return filterlatency.TrackStarted(next, provider, name) },
		step: func(s *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
			s.timing = timing{name, time.Now()}
			return w, req
		},
	}
}

// trackCompleted marks where the filter of the last trackStarted passes the request on.
func trackCompleted() filter {
	return filter{wrap: filterlatency.TrackCompleted, step: recordLatency}
}

func recordLatency(s *requestState, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	if s.timing.name != "" {
		took := time.Since(s.timing.started)
		metrics.RecordFilterLatency(req.Context(), s.timing.name, took)
		if took > slowFilter && klog.V(3).Enabled() {
			httplog.AddKeyValue(req.Context(), "fl_"+s.timing.name, took.String())
		}
	}
	return w, req
}

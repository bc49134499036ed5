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

// step is the filter that a request is in. It belongs to the one goroutine that
// handles the request at a time.
type step struct {
	name  string
	began time.Time
	// w and req are what a filter of a line has passed on, until the line takes them.
	w   http.ResponseWriter
	req *http.Request
	// stranger is set while the request names what may not be named yet.
	stranger stranger
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
func began(provider tracing.TracerProvider, name string) part {
	return part{
		filter: func(next http.Handler) http.Handler { return filterlatency.TrackStarted(next, provider, name) },
		link: func(s *step, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
			s.name, s.began = name, time.Now()
			return w, req
		},
	}
}

// ended marks where the filter that began last has passed the request on.
func ended() part { return part{filter: filterlatency.TrackCompleted, link: endStep} }

func endStep(s *step, w http.ResponseWriter, req *http.Request) (http.ResponseWriter, *http.Request) {
	if s.name != "" {
		took := time.Since(s.began)
		metrics.RecordFilterLatency(req.Context(), s.name, took)
		if took > slowStep && klog.V(3).Enabled() {
			httplog.AddKeyValue(req.Context(), "fl_"+s.name, took.String())
		}
	}
	return w, req
}

package reads

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"triune.dev/shared/server/shutdown"
	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/keywatch"
)

// WatchConfig is the additional Config of WATCH.
type WatchConfig struct {
	// Source makes the watches; it must have the cache of the Config. Required.
	Source *keywatch.Source
	// MinRequestTimeout is that of the server's configuration: the timeout of a request
	// without one is between it and twice as much.
	MinRequestTimeout time.Duration
	// Forced is for the deprecated paths below /watch/, which need no parameter.
	Forced bool
}

// Watch returns the handler of WATCH. The fallback also gets other requests.
func (h *Handlers) Watch(c WatchConfig, fallback http.HandlerFunc) (http.HandlerFunc, error) {
	if c.Source == nil || c.Source.Cache != h.config.Cache {
		return nil, errors.New("reads: a watch needs a source with the same cache")
	}
	ws := newWatches(h, c)
	return func(w http.ResponseWriter, req *http.Request) {
		if stream, ok := ws.begin(w, req); ok {
			stream.serve(req)
		} else {
			fallback(w, req)
		}
	}, nil
}

// watches serves the WATCHes of one resource in one version.
type watches struct {
	*Handlers
	WatchConfig
	frames    *frames
	shutdowns *shutdown.Waiters[*keywatch.Watch]
	metrics   func() watchMetrics
}

// watchMetrics count the events sent and their sizes.
type watchMetrics struct {
	events compbasemetrics.CounterMetric
	sizes  compbasemetrics.ObserverMetric
}

func newWatches(h *Handlers, c WatchConfig) *watches {
	resource := h.config.Scope.Resource
	return &watches{
		Handlers: h, WatchConfig: c, frames: newFrames(h),
		shutdowns: shutdown.New((*keywatch.Watch).Wake),
		metrics: sync.OnceValue(func() watchMetrics {
			return watchMetrics{
				metrics.WatchEvents.WithLabelValues(resource.Group, resource.Version, resource.Resource),
				metrics.WatchEventsSizes.WithLabelValues(resource.Group, resource.Version, resource.Resource),
			}
		}),
	}
}

// begin returns false, with nothing written, if the fallback must answer. It is separate
// from [watchStream.serve] so that its variables do not stay on the stack until the watch
// ends.
func (ws *watches) begin(w http.ResponseWriter, req *http.Request) (*watchStream, bool) {
	if !ws.Forced && !strings.Contains(req.URL.RawQuery, "watch") {
		return nil, false
	}
	flusher, ok := w.(http.Flusher)
	if !ok || req.Method != http.MethodGet || wsstream.IsWebSocketRequest(req) ||
		utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion) {
		return nil, false
	}
	info, ok := requestInfo(req)
	if !ok {
		return nil, false
	}
	media, asTable, ok := ws.media(req)
	if !ok {
		return nil, false
	}
	options, ok := ws.watchOptions(req, info.Name)
	if !ok {
		return nil, false
	}
	timeout := ws.timeout(&options)
	if timeout <= 0 {
		return nil, false
	}
	s := &watchStream{watches: ws, w: w, flusher: flusher, media: media}
	if !ws.prepare(s, info.Namespace, &options) || asTable && !s.initTable(req) {
		return nil, false
	}
	klog.V(3).InfoS("watch begins", "resource", ws.config.Scope.Resource, "path", req.URL.Path, "resourceVersion", options.ResourceVersion,
		"labels", options.LabelSelector, "fields", options.FieldSelector, "sendInitialEvents", options.SendInitialEvents,
		"timeout", timeout, "auditID", audit.GetAuditIDTruncated(req.Context()))
	if s.request.EndBookmark {
		s.scope = metrics.CleanListScope(request.WithNamespace(req.Context(), info.Namespace), &options)
	}
	s.ctx, s.cancel = context.WithTimeout(req.Context(), timeout)
	s.watch, s.failed = s.request.Start(s.ctx)
	return s, true
}

// narrowInterest returns an Interest in the objects that a field selector can match, if it
// requires a value of a field that is not in the key.
func narrowInterest(i bytecache.Interest, field fields.Selector) bytecache.Interest {
	for _, r := range field.Requirements() {
		if (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) && !metadataField(r.Field) {
			return bytecache.Interest{Field: r.Field, Value: r.Value}
		}
	}
	return i
}

// initTable finds the row envelope of a Table watch.
func (s *watchStream) initTable(req *http.Request) bool {
	style, ok := tableStyleOf(req, s.media.transformed)
	if !ok || s.config.Scope.TableConvertor == nil {
		return false
	}
	var err error
	s.media.table, err = s.frames.rowEnvelope(req.Context(), s.Handlers, &s.request, style)
	return err == nil
}

// serve sends the stream until it ends.
func (s *watchStream) serve(req *http.Request) {
	defer s.cancel()
	info, _ := requestInfo(req)
	metrics.RecordLongRunning(req, info, metrics.APIServerComponent, s.run)
}

// timeout returns the client's timeout or a random one, so that not all clients reconnect
// at once.
func (ws *watches) timeout(options *metainternalversion.ListOptions) time.Duration {
	if options.TimeoutSeconds != nil && *options.TimeoutSeconds != 0 {
		return time.Duration(*options.TimeoutSeconds) * time.Second
	}
	return time.Duration(float64(ws.MinRequestTimeout) * (1 + rand.Float64()))
}

// watchOptions returns the parameters of a WATCH.
func (ws *watches) watchOptions(req *http.Request, name string) (options metainternalversion.ListOptions, ok bool) {
	options, ok = ws.decodeOptions(req, name)
	return options, ok && (options.Watch || ws.Forced)
}

// prepare sets the selector of a stream and the keys that it watches.
func (ws *watches) prepare(s *watchStream, namespace string, options *metainternalversion.ListOptions) bool {
	var p plan
	p.setSelectors(options)
	p.options = storage.ListOptions{
		ResourceVersion: options.ResourceVersion, Recursive: true, SendInitialEvents: options.SendInitialEvents,
		Predicate: storage.SelectionPredicate{Label: p.label, Field: p.field, AllowWatchBookmarks: options.AllowWatchBookmarks},
	}
	if !ws.setPrefix(&p, namespace) {
		return false
	}
	var err error
	if s.request, err = ws.Source.Prepare(p.prefix, p.options); err != nil {
		return false
	}
	if !ws.config.OwnFields && s.request.Recursive {
		s.request.Interest = narrowInterest(s.request.Interest, p.field)
	}
	if p.selects() {
		s.selects = &plan{label: p.label, field: p.field, byKey: p.byKey}
	}
	return true
}

package reads

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"triune.dev/shared/bytecache"
	"triune.dev/shared/etcdstore"
)

// WatchConfig is what a WATCH needs beside the Config of all reads.
type WatchConfig struct {
	// Store decides where watches begin; its cache is that of the Config. Required.
	Store *etcdstore.Store
	// MinRequestTimeout is as in the server's configuration: a client that names no
	// timeout is given one between it and twice as much.
	MinRequestTimeout time.Duration
	// Forced is for the deprecated paths below /watch/, which need no parameter.
	Forced bool
}

// Watch returns the handler of WATCH. The fallback also gets what is no watch.
func (h *Handlers) Watch(c WatchConfig, fallback http.HandlerFunc) (http.HandlerFunc, error) {
	if c.Store == nil || c.Store.Cache() != h.config.Cache {
		return nil, errors.New("reads: a watch needs the store of the same cache")
	}
	ws := newWatches(h, c)
	return func(w http.ResponseWriter, req *http.Request) {
		stream, ok := ws.begin(w, req)
		switch {
		case !ok:
			fallback(w, req)
		case !stream.carried(req):
			stream.serve(req)
		}
	}, nil
}

// watches serves the WATCHes of one resource in one version.
type watches struct {
	*Handlers
	WatchConfig
	frames  *frames
	closing closing
	metrics func() watchMetrics
}

// watchMetrics count what all watches send, and how large it is.
type watchMetrics struct {
	events compbasemetrics.CounterMetric
	sizes  compbasemetrics.ObserverMetric
}

func newWatches(h *Handlers, c WatchConfig) *watches {
	resource := h.config.Scope.Resource
	return &watches{
		Handlers: h, WatchConfig: c, frames: newFrames(h),
		metrics: sync.OnceValue(func() watchMetrics {
			return watchMetrics{
				metrics.WatchEvents.WithLabelValues(resource.Group, resource.Version, resource.Resource),
				metrics.WatchEventsSizes.WithLabelValues(resource.Group, resource.Version, resource.Resource),
			}
		}),
	}
}

// begin returns false, with nothing written, where the fallback is to answer. It is
// apart from [watchStream.serve], for what is needed here should not stay on the stack
// until the watch ends.
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
	if !ws.prepare(s, info.Namespace, &options) || asTable && !s.findTable(req) {
		return nil, false
	}
	klog.V(3).InfoS("watch begins", "resource", ws.config.Scope.Resource, "path", req.URL.Path, "resourceVersion", options.ResourceVersion,
		"labels", options.LabelSelector, "fields", options.FieldSelector, "sendInitialEvents", options.SendInitialEvents,
		"timeout", timeout, "auditID", audit.GetAuditIDTruncated(req.Context()))
	if s.request.EndBookmark {
		s.scope = metrics.CleanListScope(request.WithNamespace(req.Context(), info.Namespace), &options)
	}
	s.ctx, s.cancel = context.WithTimeout(req.Context(), timeout)
	s.follow, s.failed = s.request.Follow(s.ctx)
	return s, true
}

// narrowed is an interest in those objects only that a field selector can match, if it
// demands a value of a field that is not in the key.
func narrowed(i bytecache.Interest, field fields.Selector) bytecache.Interest {
	for _, r := range field.Requirements() {
		if (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) && !metadataField(r.Field) {
			return bytecache.Interest{Field: r.Field, Value: r.Value}
		}
	}
	return i
}

// findTable finds what is around the rows of a Table that is asked for.
func (s *watchStream) findTable(req *http.Request) bool {
	style, ok := tableStyleOf(req, s.media.transformed)
	if !ok || s.config.Scope.TableConvertor == nil {
		return false
	}
	var err error
	s.media.table, err = s.frames.shell(req.Context(), s.Handlers, &s.request, style)
	return err == nil
}

// carried hands the stream to a goroutine whose stack has not grown on the way here,
// if there is one.
func (s *watchStream) carried(req *http.Request) bool {
	task := routine.TaskFrom(req.Context())
	if task == nil {
		return false
	}
	task.Func = func() { s.serve(req) }
	return true
}

// serve sends the stream until it is over.
func (s *watchStream) serve(req *http.Request) {
	defer s.cancel()
	info, _ := requestInfo(req)
	metrics.RecordLongRunning(req, info, metrics.APIServerComponent, s.run)
}

// timeout is the client's, or a random one, so that not all come back at once.
func (ws *watches) timeout(options *metainternalversion.ListOptions) time.Duration {
	if options.TimeoutSeconds != nil && *options.TimeoutSeconds != 0 {
		return time.Duration(*options.TimeoutSeconds) * time.Second
	}
	return time.Duration(float64(ws.MinRequestTimeout) * (1 + rand.Float64()))
}

// watchOptions reads the parameters of a WATCH.
func (ws *watches) watchOptions(req *http.Request, name string) (options metainternalversion.ListOptions, ok bool) {
	options, ok = ws.decodeOptions(req, name)
	return options, ok && (options.Watch || ws.Forced)
}

// prepare decides what a stream selects and which keys it watches.
func (ws *watches) prepare(s *watchStream, namespace string, options *metainternalversion.ListOptions) bool {
	p := plan{label: labels.Everything(), field: fields.Everything()}
	if options.LabelSelector != nil {
		p.label = options.LabelSelector
	}
	if options.FieldSelector != nil {
		p.field = options.FieldSelector
	}
	p.byKey = !slices.ContainsFunc(p.field.Requirements(), func(r fields.Requirement) bool { return !metadataField(r.Field) })
	p.options = storage.ListOptions{
		ResourceVersion: options.ResourceVersion, Recursive: true, SendInitialEvents: options.SendInitialEvents,
		Predicate: storage.SelectionPredicate{Label: p.label, Field: p.field, AllowWatchBookmarks: options.AllowWatchBookmarks},
	}
	if !ws.place(&p, namespace) {
		return false
	}
	var err error
	if s.request, err = ws.Store.PrepareWatchAt(p.prefix, p.options); err != nil {
		return false
	}
	if !ws.config.OwnFields && s.request.Recursive {
		s.request.Interest = narrowed(s.request.Interest, p.field)
	}
	if p.selects() {
		s.selects = &plan{label: p.label, field: p.field, byKey: p.byKey}
	}
	return true
}

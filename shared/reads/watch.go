package reads

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

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
	ws := &watches{Handlers: h, WatchConfig: c}
	ws.frames = newFrames(h)
	return func(w http.ResponseWriter, req *http.Request) {
		if !ws.serve(w, req) {
			fallback(w, req)
		}
	}, nil
}

// watches serves the WATCHes of one resource in one version.
type watches struct {
	*Handlers
	WatchConfig
	frames  *frames
	closing closing
}

// serve returns false, with nothing written, where the fallback is to answer.
func (ws *watches) serve(w http.ResponseWriter, req *http.Request) bool {
	if !ws.Forced && !strings.Contains(req.URL.RawQuery, "watch") {
		return false
	}
	flusher, ok := w.(http.Flusher)
	if !ok || req.Method != http.MethodGet || wsstream.IsWebSocketRequest(req) ||
		utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion) {
		return false
	}
	info, ok := requestInfo(req)
	if !ok {
		return false
	}
	media, ok := ws.media(req)
	if !ok {
		return false
	}
	options, ok := ws.watchOptions(req, info.Name)
	if !ok {
		return false
	}
	timeout := ws.timeout(&options)
	if timeout <= 0 {
		return false
	}
	s := &watchStream{watches: ws, w: w, flusher: flusher, media: media}
	if !ws.prepare(s, info.Namespace, &options) {
		return false
	}
	klog.V(3).InfoS("watch begins", "resource", ws.config.Scope.Resource, "path", req.URL.Path, "resourceVersion", options.ResourceVersion,
		"labels", options.LabelSelector, "fields", options.FieldSelector, "sendInitialEvents", options.SendInitialEvents,
		"timeout", timeout, "auditID", audit.GetAuditIDTruncated(req.Context()))
	if s.request.EndBookmark {
		s.scope = metrics.CleanListScope(request.WithNamespace(req.Context(), info.Namespace), &options)
	}
	ctx, cancel := context.WithTimeout(req.Context(), timeout)
	s.ctx = ctx
	following, err := s.request.Follow(ctx)
	run := func() {
		defer cancel()
		metrics.RecordLongRunning(req, info, metrics.APIServerComponent, func() { s.run(following, err) })
	}
	// A goroutine whose stack has not grown on the way here may carry the stream.
	if task := routine.TaskFrom(req.Context()); task != nil {
		task.Func = run
	} else {
		run()
	}
	return true
}

// timeout is the client's, or a random one, so that not all come back at once.
func (ws *watches) timeout(options *metainternalversion.ListOptions) time.Duration {
	if options.TimeoutSeconds != nil && *options.TimeoutSeconds != 0 {
		return time.Duration(*options.TimeoutSeconds) * time.Second
	}
	return time.Duration(float64(ws.MinRequestTimeout) * (1 + rand.Float64()))
}

// watchOptions reads the parameters as upstream's ListResource does. ok is false
// where the fallback knows the error, or what to do.
func (ws *watches) watchOptions(req *http.Request, name string) (options metainternalversion.ListOptions, ok bool) {
	scope := ws.config.Scope
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(req.URL.Query(), scope.MetaGroupVersion, &options); err != nil {
		return options, false
	}
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	metainternalversion.SetListOptionsDefaults(&options, watchList)
	switch {
	case !options.Watch && !ws.Forced, options.ShardSelector != "":
		return options, false
	case len(metainternalversionvalidation.ValidateListOptions(&options, watchList)) != 0:
		return options, false
	}
	if options.FieldSelector != nil {
		var err error
		options.FieldSelector, err = options.FieldSelector.Transform(func(label, value string) (string, string, error) {
			return scope.Convertor.ConvertFieldLabel(scope.Kind, label, value)
		})
		if err != nil {
			return options, false
		}
	}
	if name == "" {
		return options, true
	}
	// The request info has the name that a field selector asks for, too.
	if options.FieldSelector == nil || options.FieldSelector.Empty() {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", name)
		return options, true
	}
	selected, found := options.FieldSelector.RequiresExactMatch("metadata.name")
	return options, found && selected == name
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
	if s.request, err = ws.Store.PrepareWatchAt(p.prefix, p.options); err != nil || !s.request.Cached() {
		return false
	}
	if p.selects() {
		s.selects = &plan{label: p.label, field: p.field, byKey: p.byKey}
	}
	return true
}

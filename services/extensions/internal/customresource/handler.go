package customresource

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"triune.dev/services/extensions/internal/scheme"
)

// Config is the configuration of a Handler.
type Config struct {
	// NotFound answers requests that no CRD serves. Required.
	NotFound http.Handler
	// RESTOptionsGetter returns the storage options of custom resources, in which this
	// package sets the resource prefix and the codec. Required.
	RESTOptionsGetter generic.RESTOptionsGetter
	// Admission runs on every write. Nil admits everything.
	Admission admission.Interface
	// Authorizer authorizes the implied verbs of a request, such as the create of an
	// apply. Required.
	Authorizer authorizer.Authorizer
	// ServiceResolver and WebhookAuth find conversion webhooks: the address of a Service,
	// and the credentials to present. WebhookTimeout bounds a call; 0 means no
	// limit, because upstream does not use the context of the request.
	ServiceResolver webhook.ServiceResolver
	WebhookAuth     webhook.AuthenticationInfoResolverWrapper
	WebhookTimeout  time.Duration
	// RequestTimeout bounds requests that are not long-running. A retired generation
	// waits at most twice that long for its requests.
	RequestTimeout time.Duration
	// MinRequestTimeout is the shortest duration of a watch without a timeout of its own.
	MinRequestTimeout time.Duration
	// MaxRequestBodyBytes limits the body of a write; 0 means no limit.
	MaxRequestBodyBytes int64
	// PeerDelay delays creates shortly after a CRD was established, until other replicas
	// serve it: otherwise a client that creates here and reads there may get 404. 0 if
	// there is no other replica.
	PeerDelay time.Duration
}

// Handler serves the objects of the CRDs that Put has added. It must be closed. All methods
// are safe for concurrent use.
type Handler struct {
	config Config
	table  *table
	verbs  verbs
}

// New returns a handler without CRDs.
func New(config Config) (*Handler, error) {
	converters, err := conversion.NewCRConverterFactory(config.ServiceResolver, withTimeout(config.WebhookAuth, config.WebhookTimeout))
	if err != nil {
		return nil, fmt.Errorf("make the conversion webhook clients: %w", err)
	}
	h := &Handler{
		config: config,
		verbs:  verbs{admission: config.Admission},
	}
	build := func(crd *apiextensionsv1.CustomResourceDefinition) (*serving, error) {
		return newServing(&h.config, converters, crd)
	}
	h.table = newTable(build, 2*config.RequestTimeout)
	return h, nil
}

// Put adds or replaces crd, which must not be changed afterwards.
func (h *Handler) Put(crd *apiextensionsv1.CustomResourceDefinition) { h.table.put(crd) }

// Remove removes crd, unless it has been replaced by another CRD of the same name.
func (h *Handler) Remove(crd *apiextensionsv1.CustomResourceDefinition) { h.table.remove(crd) }

// Close ends the watches and destroys all storage before it returns. No requests may be
// made afterwards.
func (h *Handler) Close() { h.table.close() }

// GetCustomResourceListerCollectionDeleter returns the storage of a CRD's objects, without
// admission, for the finalizing controller. It implements finalizer.CRClientGetter.
func (h *Handler) GetCustomResourceListerCollectionDeleter(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	r := h.table.get(crd.Name)
	if r == nil || r.crd.UID != crd.UID {
		return nil, fmt.Errorf("custom resource definition %s is not served", crd.Name)
	}
	return objects{generation: r.generation}, nil
}

// ServeHTTP serves a request, whose context must hold the request info.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok {
		refuse(w, req, schema.GroupVersion{}, apierrors.NewInternalError(errors.New("no RequestInfo found in the context")))
		return
	}
	if !info.IsResourceRequest {
		h.config.NotFound.ServeHTTP(w, req)
		return
	}
	// The CRD may change between lookup and serve. Each lookup then finds a newer one, so
	// the loop ends.
	for {
		r := lookup(h.table, info)
		if r == nil {
			h.config.NotFound.ServeHTTP(w, req)
			return
		}
		if err := h.serve(w, req, info, r); !errors.Is(err, errRetired) {
			if err != nil {
				klog.ErrorS(err, "custom resource definition cannot be served", "crd", r.crd.Name)
				refuse(w, req, groupVersion(info), apierrors.NewInternalError(errors.New("error resolving resource")))
			}
			return
		}
	}
}

// serve serves the request with the generation of r. If it returns an error, it has written
// nothing.
func (h *Handler) serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, r *row) error {
	u := short
	if info.Verb == "watch" {
		u = watch
	}
	s, release, err := r.generation.acquire(u)
	if err != nil {
		return err
	}
	defer release()
	v, err := s.version(info.APIVersion)
	if err != nil {
		return err
	}
	for _, text := range v.warnings {
		warning.AddWarning(req.Context(), "", text)
	}
	e := v.reads
	if !readOnly(info.Verb) {
		if e, err = v.writes.get(); err != nil {
			return err
		}
	}
	handle, err := h.handlerFor(info, r, v, e)
	if err != nil {
		refuse(w, req, groupVersion(info), err)
		return nil
	}
	if u == watch {
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		defer context.AfterFunc(r.generation.ending, cancel)()
		req = req.WithContext(ctx)
	}
	if info.Verb == "create" && info.Subresource == "" {
		h.awaitPeers(req.Context(), r.crd)
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), info.APIGroup, info.APIVersion, info.Resource, info.Subresource,
		metrics.CleanScope(info), metrics.APIServerComponent, v.deprecated, "", handle)(w, req)
	return nil
}

// readOnly reports whether verb needs no validators.
func readOnly(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

// handlerFor returns the handler of the request, or the error to answer it with.
func (h *Handler) handlerFor(info *apirequest.RequestInfo, r *row, v *version, e *endpoints) (http.HandlerFunc, error) {
	var handle http.HandlerFunc
	switch endpointOf(r.crd, info) {
	case resourceEndpoint:
		creating := h.config.Admission
		if apihelpers.IsCRDConditionTrue(r.crd, apiextensionsv1.Terminating) {
			creating = noCreate{creating}
		}
		handle = h.verbs.resource(info.Verb, v, e, creating)
	case statusEndpoint:
		handle = h.verbs.subresource(info.Verb, e.storage.Status, e.status)
	case scaleEndpoint:
		handle = h.verbs.subresource(info.Verb, e.storage.Scale, e.scale)
	default:
		return nil, apierrors.NewNotFound(groupResource(info), info.Name)
	}
	if handle == nil {
		return nil, apierrors.NewMethodNotSupported(groupResource(info), info.Verb)
	}
	return handle, nil
}

// awaitPeers delays a create while other replicas may not serve the CRD.
func (h *Handler) awaitPeers(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	established := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	if h.config.PeerDelay <= 0 || established == nil {
		return
	}
	if time.Since(established.LastTransitionTime.Time) >= h.config.PeerDelay {
		return
	}
	// Times of conditions are whole seconds, so the remaining delay is unknown.
	timer := time.NewTimer(h.config.PeerDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func groupVersion(info *apirequest.RequestInfo) schema.GroupVersion {
	return schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
}

func groupResource(info *apirequest.RequestInfo) schema.GroupResource {
	return schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
}

func refuse(w http.ResponseWriter, req *http.Request, gv schema.GroupVersion, err error) {
	responsewriters.ErrorNegotiated(err, scheme.Codecs, gv, w, req)
}

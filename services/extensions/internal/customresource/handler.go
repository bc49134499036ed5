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

// Config is what a Handler needs of its server.
type Config struct {
	// NotFound answers resource requests that no CRD answers. Required.
	NotFound http.Handler
	// RESTOptionsGetter gives the storage of custom resources; resource prefix
	// and codec are set for each by this package. Required.
	RESTOptionsGetter generic.RESTOptionsGetter
	// Admission runs on every write. Nil admits everything.
	Admission admission.Interface
	// Authorizer is asked again where a request turns out to do more than its
	// verb says, such as an apply that creates. Required.
	Authorizer authorizer.Authorizer
	// ServiceResolver and WebhookAuth reach conversion webhooks: the address of
	// one given as a Service, and the credentials to use. WebhookTimeout bounds
	// one call; 0 means no bound but the request's.
	ServiceResolver webhook.ServiceResolver
	WebhookAuth     webhook.AuthenticationInfoResolverWrapper
	WebhookTimeout  time.Duration
	// RequestTimeout bounds the requests that are not long-running; a retired
	// generation waits at most twice that long for its requests.
	RequestTimeout time.Duration
	// MinRequestTimeout is the shortest time after which a watch that asks for no
	// timeout is ended.
	MinRequestTimeout time.Duration
	// MaxRequestBodyBytes limits the body of a write; 0 means no limit.
	MaxRequestBodyBytes int64
	// PeerDelay is how long after a CRD is established its first objects are held
	// back, for other replicas to learn of it: else a client that creates here
	// and reads there may get 404. 0 when there is no other replica.
	PeerDelay time.Duration
}

// Handler serves the objects of CRDs. It is told of CRDs by Put and Remove and
// must be closed. All methods are safe for concurrent use.
type Handler struct {
	config Config
	table  *table
	verbs  verbs
}

// New returns a handler that knows no CRD yet.
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

// Put makes the handler serve crd as it is now. crd must not be changed later.
func (h *Handler) Put(crd *apiextensionsv1.CustomResourceDefinition) { h.table.put(crd) }

// Remove makes the handler forget crd, unless another CRD has taken its name.
func (h *Handler) Remove(crd *apiextensionsv1.CustomResourceDefinition) { h.table.remove(crd) }

// Close ends the watches, destroys all storage and returns when that is done. The
// server must not send requests any more.
func (h *Handler) Close() { h.table.close() }

// GetCustomResourceListerCollectionDeleter lets the finalizing controller delete
// the objects of a CRD below admission. It implements finalizer.CRClientGetter.
func (h *Handler) GetCustomResourceListerCollectionDeleter(crd *apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	r := h.table.get(crd.Name)
	if r == nil || r.crd.UID != crd.UID {
		return nil, fmt.Errorf("custom resource definition %s is not served", crd.Name)
	}
	return objects{generation: r.generation}, nil
}

// ServeHTTP answers a request whose context holds the request info.
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
	// The CRD may change between finding its row and using it; what is then
	// found is newer, so this ends.
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

// serve answers the request with the generation of r. If it returns an error it
// has written nothing.
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
	of := v.reads
	if !readOnly(info.Verb) {
		if of, err = v.writes.get(); err != nil {
			return err
		}
	}
	handle, err := h.handlerFor(info, r, v, of)
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

// readOnly tells the verbs that need no schemas to be asked.
func readOnly(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

// handlerFor returns what answers the request, or the error that does.
func (h *Handler) handlerFor(info *apirequest.RequestInfo, r *row, v *version, of *endpoints) (http.HandlerFunc, error) {
	var handle http.HandlerFunc
	switch endpointOf(r.crd, info) {
	case resourceEndpoint:
		creating := h.config.Admission
		if apihelpers.IsCRDConditionTrue(r.crd, apiextensionsv1.Terminating) {
			creating = noCreate{creating}
		}
		handle = h.verbs.resource(info.Verb, v, of, creating)
	case statusEndpoint:
		handle = h.verbs.subresource(info.Verb, of.storage.Status, of.status)
	case scaleEndpoint:
		handle = h.verbs.subresource(info.Verb, of.storage.Scale, of.scale)
	default:
		return nil, apierrors.NewNotFound(groupResource(info), info.Name)
	}
	if handle == nil {
		return nil, apierrors.NewMethodNotSupported(groupResource(info), info.Verb)
	}
	return handle, nil
}

// awaitPeers holds a create back while other replicas may not know the CRD.
func (h *Handler) awaitPeers(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	established := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	if h.config.PeerDelay <= 0 || established == nil {
		return
	}
	if time.Since(established.LastTransitionTime.Time) >= h.config.PeerDelay {
		return
	}
	// Condition times have seconds, so the rest of the delay is not known.
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

package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	serviceproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/streaming/pkg/httpstream"

	"triune.dev/shared/server/filters"
	"triune.dev/shared/transport/nexttier"
)

// defaultPort is the default of spec.service.port.
const defaultPort = 443

// component is the label of requests that the aggregator terminates, in kube-apiserver's metrics.
const component = "aggregator"

// Network is shared by all Backends of a process.
type Network struct {
	// Transports holds the connections.
	Transports *Transports
	// Resolver resolves Services.
	Resolver Resolver
	// Ejected holds the addresses that could not be dialled.
	Ejected *Ejected
	// Unreachable, if set, is called with the name of an APIService that a request could not
	// reach. It must not block.
	Unreachable func(apiService string)
	// FollowRedirects forwards redirects of extension servers to clients instead of refusing
	// them (--aggregator-reject-forwarding-redirect=false).
	FollowRedirects bool
}

// Backend is the server behind a remote APIService. It belongs to one version of the object: a
// changed APIService gets a new Backend.
type Backend struct {
	apiService   *apiregistrationv1.APIService
	network      Network
	available    bool
	reverseProxy *httputil.ReverseProxy
}

// New returns the Backend of an APIService, whose spec.service must be set.
func New(apiService *apiregistrationv1.APIService, network Network) *Backend {
	b := &Backend{
		apiService: apiService,
		network:    network,
		available:  apiregistrationhelper.IsAPIServiceConditionTrue(apiService, apiregistrationv1.Available),
	}
	b.reverseProxy = &httputil.ReverseProxy{
		Rewrite: b.rewrite,
		Transport: roundTripperFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := b.roundTrip(req)
			if err != nil {
				return nil, fmt.Errorf("error trying to reach service: %w", err)
			}
			return resp, nil
		}),
		ModifyResponse: b.modifyResponse,
		ErrorHandler:   b.handleError,
		BufferPool:     bufferPool{},
	}
	return b
}

// APIService returns the object of this Backend, which must not be modified.
func (b *Backend) APIService() *apiregistrationv1.APIService { return b.apiService }

// Available reports whether the condition Available of the APIService is true.
func (b *Backend) Available() bool { return b.available }

func (b *Backend) port() int32 {
	if port := b.apiService.Spec.Service.Port; port != nil {
		return *port
	}
	return defaultPort
}

// ServeHTTP proxies a request on behalf of the user in its context.
func (b *Backend) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !b.available {
		b.terminate(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if _, err := b.network.Transports.For(b.apiService); err != nil {
		b.terminate(w, req, err.Error(), http.StatusInternalServerError)
		return
	}
	u, ok := request.UserFrom(req.Context())
	if !ok {
		b.terminate(w, req, "missing user", http.StatusInternalServerError)
		return
	}
	if err := nexttier.CheckUser(u); err != nil { // the server would see another user
		b.terminate(w, req, err.Error(), http.StatusInternalServerError)
		return
	}

	// The address is chosen later; until then, the URL has the name of the Service.
	location := &url.URL{
		Scheme:   "https",
		Host:     serverName(b.apiService),
		Path:     req.URL.Path,
		RawPath:  req.URL.RawPath,
		RawQuery: req.URL.Query().Encode(),
	}
	// NewRequestForProxy preserves the audit ID and bounds discovery requests.
	out, cancel := serviceproxy.NewRequestForProxy(location, req)
	defer cancel()

	// The work of an extension server does not occupy seats of this tier.
	utilflowcontrol.RequestDelegated(req.Context())
	if httpstream.IsUpgradeRequest(req) {
		b.upgrade(w, out, location)
		return
	}
	b.reverseProxy.ServeHTTP(w, out)
}

// rewrite completes an outgoing request. It sets the identity headers at this point because the
// reverse proxy has already removed the headers that the client's Connection header nominates (RFC
// 9110, section 7.6.1), which could have included them.
func (b *Backend) rewrite(pr *httputil.ProxyRequest) {
	assertContextUser(pr.Out)
	// Keep the addresses of earlier proxies, which Rewrite removes: the audit log of an
	// extension server contains them behind kube-apiserver.
	pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	pr.SetXForwarded()
	uri := path.Clean(pr.In.URL.EscapedPath())
	if strings.HasSuffix(pr.In.URL.Path, "/") {
		uri += "/"
	}
	pr.Out.Header.Set("X-Forwarded-Uri", uri)
}

// roundTrip is the transport of the reverse proxy.
func (b *Backend) roundTrip(req *http.Request) (*http.Response, error) {
	connections, err := b.network.Transports.For(b.apiService)
	if err != nil {
		return nil, err
	}
	addresses, err := b.addresses()
	if err != nil {
		return nil, err
	}
	return b.sendToFirst(connections.roundTripper, addresses, req)
}

const redirectRefused = "the backend attempted to redirect this request, which is not permitted"

// modifyResponse refuses redirects, which could send the client's credential to any host. It also
// removes CORS headers, because this tier sets them.
func (b *Backend) modifyResponse(resp *http.Response) error {
	for _, name := range []string{"Credentials", "Headers", "Methods", "Origin"} {
		resp.Header.Del("Access-Control-Allow-" + name)
	}
	redirects := resp.StatusCode >= 300 && resp.StatusCode <= 399 && resp.Header.Get("Location") != ""
	if !redirects || b.network.FollowRedirects || isSameDocument(resp) {
		return nil
	}
	resp.Body.Close()
	resp.StatusCode = http.StatusBadGateway
	resp.Header = http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	resp.Trailer = nil
	resp.Body = io.NopCloser(strings.NewReader(redirectRefused))
	resp.ContentLength = int64(len(redirectRefused))
	return nil
}

// isSameDocument reports whether a redirect leads to the current hash of the same OpenAPI v3
// document. All aggregated servers of Kubernetes answer this one.
func isSameDocument(resp *http.Response) bool {
	location, err := url.Parse(resp.Header.Get("Location"))
	return err == nil && location.Host == "" && location.Scheme == "" &&
		strings.HasPrefix(resp.Request.URL.Path, "/openapi/v3/") && location.Path == resp.Request.URL.Path
}

// handleError answers a request if the server cannot be reached or the connection broke.
func (b *Backend) handleError(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(err, errUnresolved) {
		klog.FromContext(req.Context()).Error(err, "apiservice has no address", "apiService", b.apiService.Name)
		b.unreachable()
		b.terminate(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if !errors.Is(err, context.Canceled) {
		b.unreachable()
	}
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

func (b *Backend) unreachable() {
	if b.network.Unreachable != nil {
		b.network.Unreachable(b.apiService.Name)
	}
}

// terminate answers a request without sending it to the server.
func (b *Backend) terminate(w http.ResponseWriter, req *http.Request, message string, code int) {
	http.Error(w, message, code)
	if info, ok := request.RequestInfoFrom(req.Context()); ok {
		endpointmetrics.RecordRequestTermination(req, filters.MetricsInfo(info), component, code)
	}
}

// upgrade proxies a request to upgrade to SPDY or WebSocket over an HTTP/1.1 connection of its
// own.
func (b *Backend) upgrade(w http.ResponseWriter, req *http.Request, location *url.URL) {
	connections, err := b.network.Transports.For(b.apiService)
	if err != nil {
		b.handleError(w, req, err)
		return
	}
	addresses, err := b.addresses()
	if err != nil {
		b.handleError(w, req, err)
		return
	}
	location.Host = addresses[0]
	req.Host = addresses[0]
	// Proxies behind this one must not remove other headers.
	req.Header.Set("Connection", "Upgrade")
	assertContextUser(req)
	dialer := &http.Transport{
		DialContext:     b.dialFirst(connections.dial, addresses),
		TLSClientConfig: connections.tls,
	}
	handler := proxy.NewUpgradeAwareHandler(location, dialer, false, true, responderFunc(b.handleError))
	handler.RejectForwardingRedirects = !b.network.FollowRedirects
	handler.ServeHTTP(w, req)
}

// Get requests a document on behalf of u. It ignores the condition Available, because callers
// use it to find out whether the server is back. The caller closes the body.
func (b *Backend) Get(ctx context.Context, u user.Info, path string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+serverName(b.apiService)+path, nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", path, err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	Assert(req, u)
	return b.roundTrip(req)
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type responderFunc func(http.ResponseWriter, *http.Request, error)

func (f responderFunc) Error(w http.ResponseWriter, req *http.Request, err error) { f(w, req, err) }

// bufferPool holds the copy buffers of the reverse proxies of all Backends.
type bufferPool struct{}

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func (bufferPool) Get() []byte  { return copyBuffers.Get().(*[32 << 10]byte)[:] }
func (bufferPool) Put(b []byte) { copyBuffers.Put((*[32 << 10]byte)(b)) }

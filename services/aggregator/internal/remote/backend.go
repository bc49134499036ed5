package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
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

// defaultPort is what spec.service.port means when it is not set.
const defaultPort = 443

// component is the label under which kube-apiserver's metrics count what the
// aggregator ends by itself.
const component = "aggregator"

// Network is what all Backends of a process share.
type Network struct {
	// Transports opens and keeps connections.
	Transports *Transports
	// Resolver finds Services.
	Resolver Resolver
	// Ejected remembers addresses that could not be dialled.
	Ejected *Ejected
	// Unreachable, if set, is told the name of an APIService that could not be
	// reached while a request waited for it. It must not block.
	Unreachable func(apiService string)
	// FollowRedirects passes on redirects that an extension server answers
	// instead of refusing them (--aggregator-reject-forwarding-redirect=false).
	FollowRedirects bool
}

// Backend is the server behind one remote APIService, as described by one
// version of the object: a changed APIService is a new Backend.
type Backend struct {
	apiService   *apiregistrationv1.APIService
	network      Network
	available    bool
	reverseProxy *httputil.ReverseProxy
}

// New returns the Backend of an APIService, whose spec.service must not be nil.
func New(apiService *apiregistrationv1.APIService, network Network) *Backend {
	b := &Backend{
		apiService: apiService,
		network:    network,
		available:  apiregistrationhelper.IsAPIServiceConditionTrue(apiService, apiregistrationv1.Available),
	}
	b.reverseProxy = &httputil.ReverseProxy{
		Rewrite:        b.rewrite,
		Transport:      roundTripperFunc(b.roundTrip),
		ModifyResponse: b.modifyResponse,
		ErrorHandler:   b.handleError,
		BufferPool:     bufferPool{},
	}
	return b
}

// APIService returns the object this Backend was made from; it is not to be
// changed.
func (b *Backend) APIService() *apiregistrationv1.APIService { return b.apiService }

// Available tells whether the APIService's Available condition is true.
func (b *Backend) Available() bool { return b.available }

func (b *Backend) port() int32 {
	if port := b.apiService.Spec.Service.Port; port != nil {
		return *port
	}
	return defaultPort
}

// ServeHTTP proxies one request in the name of the user in its context.
func (b *Backend) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !b.available {
		b.terminate(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if _, err := b.network.Transports.For(b.apiService); err != nil {
		b.terminate(w, req, err.Error(), http.StatusInternalServerError)
		return
	}
	who, ok := request.UserFrom(req.Context())
	if !ok {
		b.terminate(w, req, "missing user", http.StatusInternalServerError)
		return
	}
	if err := nexttier.CheckUser(who); err != nil { // the server would take it for somebody else
		b.terminate(w, req, err.Error(), http.StatusInternalServerError)
		return
	}

	// The name of the Service stands in for the address until one is chosen.
	location := &url.URL{
		Scheme:   "https",
		Host:     serverName(b.apiService),
		Path:     req.URL.Path,
		RawPath:  req.URL.RawPath,
		RawQuery: req.URL.Query().Encode(),
	}
	// Carries the audit ID along and gives discovery requests five seconds.
	out, cancel := serviceproxy.NewRequestForProxy(location, req)
	defer cancel()

	// The time an extension server takes is not held against our own seats.
	utilflowcontrol.RequestDelegated(req.Context())
	if httpstream.IsUpgradeRequest(req) {
		b.upgrade(w, out, location)
		return
	}
	b.reverseProxy.ServeHTTP(w, out)
}

// rewrite completes a request that is already addressed. The headers that name
// the user are set here and no earlier: before this the reverse proxy removes
// every header that the client's Connection header lists (RFC 9110, section
// 7.6.1), which might have been these.
func (b *Backend) rewrite(pr *httputil.ProxyRequest) {
	assertContextUser(pr.Out)
	// Rewrite hides what earlier proxies reported; an extension server's audit
	// log wants the whole chain, as it gets it from kube-apiserver.
	pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	pr.SetXForwarded()
	pr.Out.Header.Set("X-Forwarded-Uri", pr.In.URL.EscapedPath())
}

// roundTrip is what the reverse proxy sends with.
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

// modifyResponse refuses redirects: a client that followed one would send its
// credential to wherever the extension server likes. It also removes CORS
// headers, which are this tier's to decide.
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

// samePlace allows the one redirect that every aggregated server of Kubernetes
// answers: to the current hash of an OpenAPI v3 document, on the same server.
func isSameDocument(resp *http.Response) bool {
	location, err := url.Parse(resp.Header.Get("Location"))
	return err == nil && location.Host == "" && location.Scheme == "" &&
		strings.HasPrefix(resp.Request.URL.Path, "/openapi/v3/") && location.Path == resp.Request.URL.Path
}

// refuse answers for a server that could not be reached or has hung up.
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

// end answers a request that is not sent anywhere.
func (b *Backend) terminate(w http.ResponseWriter, req *http.Request, message string, code int) {
	http.Error(w, message, code)
	if info, ok := request.RequestInfoFrom(req.Context()); ok {
		endpointmetrics.RecordRequestTermination(req, filters.MetricsInfo(info), component, code)
	}
}

// upgrade hands the connection over to the server: SPDY and WebSocket. The
// connection is dialled for this request alone and speaks HTTP/1.1.
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
	// Nobody on the way may be told to drop anything else than the upgrade.
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

// Get asks the server for a document in the name of who. It does not look at the
// Available condition: finding out whether the server is back is what it is for.
// The caller closes the body.
func (b *Backend) Get(ctx context.Context, who user.Info, path string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+serverName(b.apiService)+path, nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", path, err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	Assert(req, who)
	return b.roundTrip(req)
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type responderFunc func(http.ResponseWriter, *http.Request, error)

func (f responderFunc) Error(w http.ResponseWriter, req *http.Request, err error) { f(w, req, err) }

// buffers lends copy buffers to the reverse proxies of all Backends.
type bufferPool struct{}

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func (bufferPool) Get() []byte  { return copyBuffers.Get().(*[32 << 10]byte)[:] }
func (bufferPool) Put(b []byte) { copyBuffers.Put((*[32 << 10]byte)(b)) }

package aggregator

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"triune.dev/shared/server/openapi"
)

// nextTier stands in for core and extensions. Clients can read its discovery, OpenAPI and CRDs; it
// answers other requests with their user and path.
type nextTier struct {
	api, apis aggregated.ResourceManager
	openapi   *openapi.Documents
	down      atomic.Bool

	mu       sync.Mutex
	crds     map[string]*apiextensionsv1.CustomResourceDefinition
	revision int
	watchers map[chan []byte]bool
}

func newNextTier() *nextTier {
	n := &nextTier{
		api:      aggregated.NewResourceManager("api"),
		apis:     aggregated.NewResourceManager("apis"),
		openapi:  openapi.NewDocuments(),
		crds:     map[string]*apiextensionsv1.CustomResourceDefinition{},
		watchers: map[chan []byte]bool{},
		revision: 1,
	}
	n.api.AddGroupVersion("", described("v1", "pods", "Pod"))
	for _, gv := range []schema.GroupVersion{
		{Group: "apps", Version: "v1"},
		{Group: "autoscaling", Version: "v1"}, {Group: "autoscaling", Version: "v2"},
		{Group: "apiextensions.k8s.io", Version: "v1"},
	} {
		n.apis.AddGroupVersion(gv.Group, described(gv.Version, "things", "Thing"))
	}
	n.openapi.SetV2(openapi.Source{Build: func() ([]byte, error) {
		return []byte(`{"swagger":"2.0","info":{"title":"next","version":"v"},"paths":{"/api/v1/":{"$ref":"#/definitions/Pod"}},"definitions":{"Pod":{"type":"object"}}}`), nil
	}})
	n.openapi.SetV3("api/v1", openapi.Source{Build: func() ([]byte, error) { return []byte(`{"openapi":"3.0.0","info":{"title":"core"}}`), nil }})
	return n
}

func described(version, resource, kind string) apidiscoveryv2.APIVersionDiscovery {
	return apidiscoveryv2.APIVersionDiscovery{
		Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Resources: []apidiscoveryv2.APIResourceDiscovery{{
			Resource: resource, Scope: apidiscoveryv2.ScopeNamespace, Verbs: []string{"get", "list"},
			ResponseKind: &metav1.GroupVersionKind{Version: version, Kind: kind},
		}},
	}
}

func (n *nextTier) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if n.down.Load() {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "core is down", http.StatusServiceUnavailable)
		return
	}
	switch path := req.URL.Path; {
	case path == "/api":
		n.api.ServeHTTP(w, req)
	case path == "/apis":
		n.apis.ServeHTTP(w, req)
	case strings.HasPrefix(path, "/openapi/"):
		n.openapi.ServeHTTP(w, req)
	case path == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions":
		n.serveCRDs(w, req)
	default:
		u, _ := request.UserFrom(req.Context())
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "next tier: %s %s for %s", req.Method, path, u.GetName())
	}
}

// define creates a CRD and adds its group-version.
func (n *nextTier) define(plural, group, version string) {
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
			{Name: version, Served: true, Storage: true},
		}},
	}
	n.publish("ADDED", crd)
	n.apis.WithSource(aggregated.CRDSource).AddGroupVersion(group, described(version, plural, "Custom"))
}

func (n *nextTier) undefine(plural, group, version string) {
	n.mu.Lock()
	crd := n.crds[plural+"."+group]
	n.mu.Unlock()
	n.publish("DELETED", crd)
	n.apis.WithSource(aggregated.CRDSource).RemoveGroupVersion(metav1.GroupVersion{Group: group, Version: version})
}

func (n *nextTier) publish(event string, crd *apiextensionsv1.CustomResourceDefinition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.revision++
	crd.ResourceVersion = strconv.Itoa(n.revision)
	n.crds[crd.Name] = crd
	if event == "DELETED" {
		delete(n.crds, crd.Name)
	}
	line, _ := json.Marshal(map[string]any{"type": event, "object": crd})
	for watcher := range n.watchers {
		watcher <- line
	}
}

// serveCRDs serves lists and watches. A watch gets all events after its list, because one lock
// guards both.
func (n *nextTier) serveCRDs(w http.ResponseWriter, req *http.Request) {
	n.mu.Lock()
	if req.URL.Query().Get("watch") == "" {
		defer n.mu.Unlock()
		list := apiextensionsv1.CustomResourceDefinitionList{
			TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinitionList"},
			ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(n.revision)},
		}
		for _, crd := range n.crds {
			list.Items = append(list.Items, *crd)
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(list)
		return
	}
	if req.URL.Query().Get("sendInitialEvents") != "" {
		n.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity) // streaming lists are not supported
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		return
	}
	if req.URL.Query().Get("resourceVersion") != strconv.Itoa(n.revision) {
		n.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone) // list again
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
		return
	}
	events := make(chan []byte, 100)
	n.watchers[events] = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.watchers, events)
		n.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-req.Context().Done():
			return
		case line := <-events:
			w.Write(append(line, '\n'))
			w.(http.Flusher).Flush()
		}
	}
}

// extension is an HTTPS server that trusts the front proxy and answers with what it received.
type extension struct {
	server  *httptest.Server
	name    string
	apis    aggregated.ResourceManager
	openapi *openapi.Documents
	// legacyOnly disables aggregated discovery.
	legacyOnly  bool
	broken      atomic.Bool
	asked       atomic.Int32
	conditional atomic.Int32
}

// seen is a request as seen by an extension server.
type seen struct {
	Server string
	Method string
	Path   string
	Query  string
	Header http.Header
	Body   string
	Proxy  string // common name of the client certificate
	Proto  string
}

func (f *fixture) startExtension(name string, change ...func(*extension)) *extension {
	f.t.Helper()
	e := &extension{name: name, apis: aggregated.NewResourceManager("apis"), openapi: openapi.NewDocuments()}
	e.apis.AddGroupVersion("wardle.example.com", described("v1alpha1", "flunders", "Flunder"))
	e.apis.AddGroupVersion("wardle.example.com", described("v1beta1", "flunders", "Flunder"))
	e.openapi.SetV2(openapi.Source{Build: func() ([]byte, error) {
		return []byte(`{"swagger":"2.0","info":{"title":"w","version":"v"},"paths":{"/apis/wardle.example.com/v1alpha1/":{"$ref":"#/definitions/Flunder"},"/version/":{}},"definitions":{"Flunder":{"type":"object"}}}`), nil
	}})
	e.openapi.SetV3("apis/wardle.example.com/v1alpha1", openapi.Source{Build: func() ([]byte, error) {
		return []byte(`{"openapi":"3.0.0","info":{"title":"flunders"}}`), nil
	}})
	for _, c := range change {
		c(e)
	}
	f.serve(e, "127.0.0.1:0")
	return e
}

// serve starts an extension server. It can be started again after stop.
func (f *fixture) serve(e *extension, address string) {
	f.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		f.t.Fatal(err)
	}
	e.server = &httptest.Server{Listener: listener, EnableHTTP2: true, TLS: f.trusting(), Config: &http.Server{Handler: e}}
	e.server.StartTLS()
	f.t.Cleanup(e.stop)
}

func (e *extension) stop() {
	e.server.CloseClientConnections()
	e.server.Close()
}

func (e *extension) port() int32 {
	_, port, _ := net.SplitHostPort(e.server.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	return int32(number)
}

func (e *extension) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	if e.broken.Load() {
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	}
	switch {
	case path == "/apis" && !e.legacyOnly:
		if req.Header.Get("If-None-Match") != "" {
			e.conditional.Add(1)
		}
		e.apis.ServeHTTP(w, req)
	case strings.HasPrefix(path, "/openapi/"):
		e.openapi.ServeHTTP(w, req)
	case path == "/apis":
		http.NotFound(w, req)
	case path == "/apis/wardle.example.com/v1alpha1":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1alpha1","resources":[{"name":"flunders","singularName":"flunder","namespaced":true,"kind":"Flunder","verbs":["get"]}]}`)
	case strings.HasSuffix(path, "/redirect"):
		http.Redirect(w, req, "https://elsewhere.example.com/", http.StatusFound)
	case strings.HasSuffix(path, "/upgrade"):
		e.upgrade(w, req)
	case strings.HasSuffix(path, "/stream"):
		// Echo each line immediately.
		lines := bufio.NewScanner(req.Body)
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		for lines.Scan() {
			fmt.Fprintln(w, lines.Text())
			http.NewResponseController(w).Flush()
		}
	default:
		e.asked.Add(1)
		body, _ := io.ReadAll(req.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		json.NewEncoder(w).Encode(e.saw(req, string(body)))
	}
}

func (e *extension) saw(req *http.Request, body string) seen {
	return seen{
		Server: e.name, Method: req.Method, Path: req.URL.EscapedPath(), Query: req.URL.RawQuery, Header: req.Header,
		Body: body, Proxy: req.TLS.PeerCertificates[0].Subject.CommonName, Proto: req.Proto,
	}
}

// upgrade switches to an echo of lines, after a first line with the user.
func (e *extension) upgrade(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", req.Header.Get("Upgrade"))
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "hello %s from %s\n", req.Header.Get("X-Remote-User"), e.name)
	for {
		line, err := buffered.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprint(conn, line)
	}
}

// byName creates a Service of type ExternalName for a server on localhost.
func (f *fixture) byName(service string) {
	f.t.Helper()
	f.createService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})
}

func (f *fixture) createService(service *corev1.Service) {
	f.t.Helper()
	if _, err := f.kube.CoreV1().Services(service.Namespace).Create(f.t.Context(), service, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// byEndpoints creates a Service with port 443 and one EndpointSlice per port on localhost.
func (f *fixture) byEndpoints(service string, ports ...int32) {
	f.t.Helper()
	f.createService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.99", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "https", Port: 443}},
		},
	})
	for i, port := range ports {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%d", service, i),
				Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}},
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: &port}},
		}
		if _, err := f.kube.DiscoveryV1().EndpointSlices("default").Create(f.t.Context(), slice, metav1.CreateOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// flunders registers wardle.example.com/v1alpha1 and waits until it is served.
func (f *fixture) flunders(t *testing.T) *extension {
	t.Helper()
	e := f.startExtension("wardle")
	f.byName("wardle")
	f.register("wardle.example.com", "v1alpha1", "wardle", e.port())
	f.served()
	return e
}

// served waits until requests for wardle.example.com/v1alpha1 are proxied.
func (f *fixture) served() {
	f.t.Helper()
	f.eventually("the extension server answers", func() (bool, string) {
		a := f.get(flundersPath)
		return a.code == http.StatusOK, fmt.Sprint(a.code, a.body)
	})
}

const flundersPath = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders"

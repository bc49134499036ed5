package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func lister(services ...*corev1.Service) corelisters.ServiceLister {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, s := range services {
		indexer.Add(s)
	}
	return corelisters.NewServiceLister(indexer)
}

func service(name string, spec corev1.ServiceSpec) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec}
}

type sliceList []*discoveryv1.EndpointSlice

func (s sliceList) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	var found []*discoveryv1.EndpointSlice
	for _, slice := range s {
		if slice.Namespace == namespace && slice.Labels[discoveryv1.LabelServiceName] == service {
			found = append(found, slice)
		}
	}
	return found, nil
}

func slice(service string, family discoveryv1.AddressType, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: family, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("other"), Port: ptr.To[int32](1)}, {Name: ptr.To("https"), Port: &port}},
	}
}

func endpoint(address string, ready *bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address, "ignored"}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
}

func TestResolve(t *testing.T) {
	ports := []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}
	services := lister(
		service("plain", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", Ports: ports, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}),
		service("headless", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "None", Ports: ports}),
		service("named", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}),
		service("empty", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.0.0.2", Ports: ports}),
	)
	all := sliceList{
		slice("plain", discoveryv1.AddressTypeIPv6, 8443, endpoint("fd00::1", nil)),
		slice("plain", discoveryv1.AddressTypeIPv4, 8443, endpoint("10.1.0.1", ptr.To(true)), endpoint("10.1.0.2", ptr.To(false))),
		slice("headless", discoveryv1.AddressTypeIPv4, 8443, endpoint("10.1.0.3", nil)),
		slice("empty", discoveryv1.AddressTypeIPv4, 8443, endpoint("10.1.0.4", ptr.To(false))),
	}
	byIP, byEndpoint := ClusterIPs(services), Endpoints(services, all)
	tests := []struct {
		name     string
		resolver Resolver
		service  string
		port     int32
		want     []string // nil: an error
	}{
		{"cluster IP", byIP, "plain", 443, []string{"10.0.0.1:443"}},
		{"cluster IP, another port", byIP, "plain", 444, nil},
		{"cluster IP, headless", byIP, "headless", 443, nil},
		{"cluster IP, external name", byIP, "named", 17, []string{"localhost:17"}},
		{"cluster IP, unknown", byIP, "nothing", 443, nil},
		{"endpoints: ready ones, primary family first", byEndpoint, "plain", 443, []string{"10.1.0.1:8443", "[fd00::1]:8443"}},
		{"endpoints, headless", byEndpoint, "headless", 443, []string{"10.1.0.3:8443"}},
		{"endpoints, another port", byEndpoint, "plain", 444, nil},
		{"endpoints, none ready", byEndpoint, "empty", 443, nil},
		{"endpoints, external name", byEndpoint, "named", 443, nil},
		{"loopback, ourselves", Loopback(byIP, "127.0.0.1:6443"), "plain", 443, []string{"10.0.0.1:443"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.resolver.Resolve("ns", test.service, test.port)
			if (err == nil) != (test.want != nil) {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	got, err := Loopback(byIP, "127.0.0.1:6443").Resolve("default", "kubernetes", 443)
	if err != nil || got[0] != "127.0.0.1:6443" {
		t.Errorf("default/kubernetes: %v, %v", got, err)
	}
	location, err := FirstURL{byIP}.ResolveEndpoint("ns", "plain", 443)
	if err != nil || location.String() != "https://10.0.0.1:443" {
		t.Errorf("URL %v, %v", location, err)
	}
}

func TestEndpointsTakeTurns(t *testing.T) {
	services := lister(service("s", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}))
	resolver := Endpoints(services, sliceList{slice("s", discoveryv1.AddressTypeIPv4, 1, endpoint("a", nil), endpoint("b", nil)), slice("s", discoveryv1.AddressTypeIPv4, 1, endpoint("c", nil))})
	first := map[string]int{}
	for range 30 {
		addresses, err := resolver.Resolve("ns", "s", 443)
		if err != nil || len(addresses) != 3 {
			t.Fatalf("%v, %v", addresses, err)
		}
		first[addresses[0]]++
	}
	if diff := cmp.Diff(map[string]int{"a:1": 10, "b:1": 10, "c:1": 10}, first); diff != "" {
		t.Errorf("who comes first (-want +got)\n%s", diff)
	}
}

func TestEjected(t *testing.T) {
	now := time.Unix(0, 0)
	e := NewEjected()
	e.now = func() time.Time { return now }
	order := func() []string { return e.order([]string{"a", "b", "c"}) }
	e.markFailed("a")
	if diff := cmp.Diff([]string{"b", "c", "a"}, order()); diff != "" {
		t.Errorf("after a failed (-want +got)\n%s", diff)
	}
	e.markFailed("b")
	e.markFailed("c")
	if diff := cmp.Diff([]string{"a", "b", "c"}, order()); diff != "" {
		t.Errorf("all failed: all are tried (-want +got)\n%s", diff)
	}
	e.markReachable("b")
	if diff := cmp.Diff([]string{"b", "a", "c"}, order()); diff != "" {
		t.Errorf("b is back (-want +got)\n%s", diff)
	}
	now = now.Add(ejection + time.Second)
	if diff := cmp.Diff([]string{"a", "b", "c"}, order()); diff != "" {
		t.Errorf("later (-want +got)\n%s", diff)
	}
	if len(e.until) != 0 {
		t.Errorf("%d addresses are remembered for ever", len(e.until))
	}
}

// dialError returns the error of a transport if no server listens.
var dialError = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

func TestAttempt(t *testing.T) {
	tests := []struct {
		name string
		// answers are the results of the transport by address.
		answers map[string]error
		asked   []string
		err     error
	}{
		{"the first answers", map[string]error{"a": nil}, []string{"a"}, nil},
		{"the first cannot be dialled", map[string]error{"a": dialError, "b": nil}, []string{"a", "b"}, nil},
		{"none can be dialled", map[string]error{"a": dialError, "b": dialError}, []string{"a", "b"}, dialError},
		{"the first hangs up: it may have acted", map[string]error{"a": io.ErrUnexpectedEOF, "b": nil}, []string{"a"}, io.ErrUnexpectedEOF},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var asked []string
			b := New(named("x"), Network{Ejected: NewEjected()})
			body := &closeCounter{Reader: bytes.NewReader([]byte("body"))}
			req, err := http.NewRequest(http.MethodPost, "https://service/path", body)
			if err != nil {
				t.Fatal(err)
			}
			req.Body = body
			resp, err := b.sendToFirst(roundTripperFunc(func(req *http.Request) (*http.Response, error) {
				asked = append(asked, req.URL.Host)
				defer req.Body.Close()
				if err := test.answers[req.URL.Host]; err != nil {
					return nil, err
				}
				content, _ := io.ReadAll(req.Body)
				return &http.Response{StatusCode: 200, Status: string(content)}, nil
			}), []string{"a", "b"}, req)
			if !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			if err == nil && resp.Status != "body" {
				t.Errorf("the body arrived as %q", resp.Status)
			}
			if diff := cmp.Diff(test.asked, asked); diff != "" {
				t.Errorf("asked (-want +got)\n%s", diff)
			}
			if body.closed != 0 {
				t.Error("the body was closed, and could not be sent again")
			}
		})
	}
}

type closeCounter struct {
	io.Reader
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func named(name string) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + name},
		Spec:       apiregistrationv1.APIServiceSpec{Group: name, Version: "v1", Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: name}},
	}
}

func TestAssert(t *testing.T) {
	req := &http.Request{Header: http.Header{
		"X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Uid": {"0"}, "X-Remote-Extra-A": {"b"},
		"X-Remote-Whatever": {"x"}, "x-remote-user": {"raw"}, "Authorization": {"Bearer x"}, "Impersonate-User": {"root"},
		"Impersonate-Extra-X": {"y"}, "Accept": {"application/json"},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0", "v4.channel.k8s.io"},
	}}
	Assert(req, &user.DefaultInfo{Name: "alice", UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}})
	want := http.Header{
		"X-Remote-User": {"alice"}, "X-Remote-Uid": {"1"}, "X-Remote-Group": {"g"}, "X-Remote-Extra-K": {"v"}, "Accept": {"application/json"},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io,v4.channel.k8s.io"},
	}
	if diff := cmp.Diff(want, req.Header); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Other tiers would see another user: HTTP/1.1, which upgraded connections use, trims spaces, and
// line breaks are replaced by spaces.
func TestUnrepresentableUsersAreRefused(t *testing.T) {
	apiService := &apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "s"}}}
	apiService.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}}
	asked := 0
	transports := NewTransports(NewIdentity(nil), func(context.Context, string, string) (net.Conn, error) { asked++; return nil, dialError }, nil)
	resolver := resolverFunc(func(string, string, int32) ([]string, error) { return []string{"127.0.0.1:1"}, nil })
	b := New(apiService, Network{Transports: transports, Resolver: resolver, Ejected: NewEjected()})
	for _, test := range []struct {
		user  *user.DefaultInfo
		asked int
	}{
		{&user.DefaultInfo{Name: "admin"}, 2},
		{&user.DefaultInfo{Name: "admin "}, 0},
		{&user.DefaultInfo{Name: "admin\n"}, 0},
		{&user.DefaultInfo{}, 0},
		{&user.DefaultInfo{Name: "eve", Groups: []string{"system:masters "}}, 0},
		{&user.DefaultInfo{Name: "eve", Extra: map[string][]string{"scopes": {"all\t"}}}, 0},
	} {
		asked = 0
		for _, header := range []http.Header{{}, {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}} {
			req := httptest.NewRequestWithContext(request.WithUser(t.Context(), test.user), http.MethodGet, "/apis/g/v1", nil)
			req.Header = header
			b.ServeHTTP(httptest.NewRecorder(), req)
		}
		if asked != test.asked {
			t.Errorf("%+v: the server was asked %d times, want %d", test.user, asked, test.asked)
		}
	}
}

func TestRedirects(t *testing.T) {
	tests := []struct {
		name, path, location string
		follow               bool
		want                 int
	}{
		{"elsewhere", "/apis/g/v1/x", "https://evil.example.com/", false, http.StatusBadGateway},
		{"on the same server", "/apis/g/v1/x", "/other", false, http.StatusBadGateway},
		{"to the current hash of an OpenAPI document", "/openapi/v3/apis/g/v1", "/openapi/v3/apis/g/v1?hash=1", false, http.StatusFound},
		{"from OpenAPI to elsewhere", "/openapi/v3/apis/g/v1", "//evil.example.com/openapi/v3/apis/g/v1", false, http.StatusBadGateway},
		{"allowed", "/apis/g/v1/x", "https://elsewhere.example.com/", true, http.StatusFound},
		{"without a location it is none", "/apis/g/v1/x", "", false, http.StatusFound},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := New(named("x"), Network{FollowRedirects: test.follow})
			resp := &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {test.location}}, Body: http.NoBody, Request: &http.Request{URL: &url.URL{Path: test.path}}}
			if err := b.modifyResponse(resp); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != test.want {
				t.Errorf("status %d, want %d", resp.StatusCode, test.want)
			}
		})
	}
}

func TestTransportsAreShared(t *testing.T) {
	transports := NewTransports(NewIdentity(nil), func(context.Context, string, string) (net.Conn, error) { return nil, dialError }, nil)
	one, same, other := named("one"), named("one"), named("other")
	same.Name, same.Spec.Version = "v2.one", "v2"
	get := func(a *apiregistrationv1.APIService) string {
		found, err := transports.For(a)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%p", found)
	}
	first := get(one)
	if get(same) != first || get(other) == first {
		t.Error("transports are shared by server name and trust, and by nothing else")
	}
	transports.Retain([]*apiregistrationv1.APIService{one})
	if get(one) != first || len(transports.byTrust) != 1 {
		t.Error("a used transport was replaced, or an unused one retained")
	}
	transports.Enqueue()
	if get(one) == first {
		t.Error("a new client certificate did not replace the transport")
	}
	bad := named("bad")
	bad.Spec.CABundle = []byte("not PEM")
	if _, err := transports.For(bad); err == nil {
		t.Error("a CA bundle without a certificate was taken for none")
	}
}

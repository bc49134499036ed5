package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	exampleinstall "k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"triune.dev/shared/testing/polltest"
)

// pods is a resource whose storage a test controls.
type pods struct {
	destroyed chan struct{}
	// watching receives a value when a watch begins, and listing when a list does, which
	// then waits for answer.
	watching, listing, answer chan struct{}
}

func newPods() *pods {
	return &pods{make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})}
}

func (*pods) New() runtime.Object     { return &example.Pod{} }
func (*pods) NewList() runtime.Object { return &example.PodList{} }
func (*pods) NamespaceScoped() bool   { return true }
func (*pods) GetSingularName() string { return "pod" }
func (p *pods) Destroy()              { close(p.destroyed) }

func (*pods) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

func (p *pods) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	p.listing <- struct{}{}
	<-p.answer
	return &example.PodList{}, nil
}

func (p *pods) Watch(context.Context, *metainternalversion.ListOptions) (watch.Interface, error) {
	p.watching <- struct{}{}
	return watch.NewFake(), nil
}

func (*pods) ConvertToTable(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error) {
	return &metav1.Table{}, nil
}

var (
	scheme = func() *runtime.Scheme {
		scheme := runtime.NewScheme()
		exampleinstall.Install(scheme)
		scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
		scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
		// The legacy group has pods, too.
		scheme.AddKnownTypes(schema.GroupVersion{Version: runtime.APIVersionInternal}, &example.Pod{}, &example.PodList{})
		scheme.AddKnownTypes(schema.GroupVersion{Version: "v1"}, &examplev1.Pod{}, &examplev1.PodList{})
		metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
		scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
			&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
		return scheme
	}()
	codecs = serializer.NewCodecFactory(scheme)
)

const group = "example.apiserver.k8s.io"

func groupInfo(storage rest.Storage) *genericapiserver.APIGroupInfo {
	return newGroupInfo(schema.GroupVersion{Group: group, Version: "v1"}, storage)
}

func newGroupInfo(gv schema.GroupVersion, storage rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, scheme, runtime.NewParameterCodec(scheme), codecs)
	info.PrioritizedVersions = []schema.GroupVersion{gv}
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"pods": storage}
	return &info
}

// newGeneric returns a configuration that authenticates every request, allows everything,
// and does not listen.
func newGeneric() *genericapiserver.Config {
	g := genericapiserver.NewConfig(codecs)
	g.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	g.FeatureGate = utilfeature.DefaultFeatureGate
	g.ExternalAddress = "127.0.0.1:443"
	g.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"), sets.NewString("log", "exec"))
	g.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "ann"}}, true, nil
	})
	g.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	g.EnableMetrics, g.EnableProfiling = false, false
	return g
}

// newServer builds a server of a tier named test. change may be nil.
func newServer(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	c := Config{
		Tier: "test", Generic: newGeneric(),
		TypeConverter: func(schema.GroupVersion) managedfields.TypeConverter { return managedfields.NewDeducedTypeConverter() },
	}
	if change != nil {
		change(&c)
	}
	completed, err := c.Complete()
	if err != nil {
		t.Fatal(err)
	}
	s, err := completed.New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listen makes g listen on a free port of the loopback address.
func listen(t *testing.T, g *genericapiserver.Config) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := certificate()
	content, err := dynamiccertificates.NewStaticCertKeyContent("test", certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	g.SecureServing = &genericapiserver.SecureServingInfo{Listener: listener, Cert: content}
}

// certificate returns the certificate of package httptest.
var certificate = sync.OnceValues(func() (certificate, key []byte) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pair := server.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
})

// running is a running server.
type running struct {
	t      *testing.T
	url    string
	client *http.Client
	stop   context.CancelFunc
	done   chan error // receives the result of Run
}

// run runs a server that listens. The test fails if goroutines of the server remain.
func run(t *testing.T, s *Server) *running {
	t.Helper()
	_ = healthz.LogHealthz.Check(nil) // starts a permanent goroutine, once per process
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{
		t: t, stop: cancel, done: make(chan error, 1),
		url:    "https://" + s.Generic().SecureServing.Listener.Addr().String(),
		client: newClient(),
	}
	prepared := s.Prepare()
	go func() { r.done <- prepared.Run(ctx); close(r.done) }()
	t.Cleanup(func() {
		cancel()
		<-r.done
		r.client.CloseIdleConnections()
		goleak.VerifyNone(t, before)
	})
	return r
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the test's own certificate
		ForceAttemptHTTP2: true,
	}}
}

// another returns a client with connections of its own.
func (r *running) another() *http.Client {
	client := newClient()
	r.t.Cleanup(client.CloseIdleConnections)
	return client
}

// wait returns what Run returned.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(30 * time.Second):
		r.t.Fatal("Run has not returned")
		return nil
	}
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	res, err := r.client.Get(r.url + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// await waits until ok returns true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, 30*time.Second, what, ok)
}

// recorder records events in order.
type recorder struct {
	mu   sync.Mutex
	list []string
}

func (r *recorder) add(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, event)
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// do calls a handler without a network.
func do(h http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, target, nil)
	for _, pair := range header {
		name, value, _ := strings.Cut(pair, ": ")
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// decodeStatus decodes the metav1.Status of an answer.
func decodeStatus(t *testing.T, w *httptest.ResponseRecorder) metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status.Kind != "Status" {
		t.Fatalf("not a Status: %q", w.Body)
	}
	if int(status.Code) != w.Code {
		t.Errorf("code %d with a Status of code %d", w.Code, status.Code)
	}
	return status
}

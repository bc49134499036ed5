package aggregator

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"triune.dev/services/aggregator/internal/discovery"
	"triune.dev/services/aggregator/internal/scheme"
	"triune.dev/shared/process/pki"
	"triune.dev/shared/server/apiserver"
	"triune.dev/shared/testing/etcdtest"
	"triune.dev/shared/testing/tiertest"
	"triune.dev/shared/transport/tierclient"
)

const patience = tiertest.Patience

// fixture is an aggregator with its own etcd, in front of a next tier and extension servers that the
// test controls. The header Test-User sets the user of a request; "mallory" has no permissions.
type fixture struct {
	t           *testing.T
	pki         *pki.PKI
	etcd        *clientv3.Client
	next        *nextTier
	kube        *fake.Clientset
	server      *Server
	url         string
	client      *http.Client
	apiServices apiregistrationclient.Interface
}

func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		goleak.VerifyNone(t, before,
			// Global goroutines that libraries start once.
			goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
			goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
			goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/server/healthz.(*log).Check.func1"),
			goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/util/wait.BackoffUntilWithContext"),
		)
	})
	f := &fixture{t: t, etcd: etcdtest.Start(t).InProcess(), next: newNextTier(), kube: fake.NewClientset()}
	var err error
	f.pki, err = pki.Ensure(filepath.Join(t.TempDir(), "pki"), pki.Options{Tiers: []string{"extension"}, ExtraNames: []string{"wardle.default.svc", "second.default.svc"}})
	if err != nil {
		t.Fatal(err)
	}
	g := newGeneric()
	config := Config{
		Generic:   g,
		Informers: informers.NewSharedInformerFactory(f.kube, 0),
		Storage:   tiertest.NewStorage(t, f.etcd, g),
		Next:      &apiserver.Next{Tier: "core", Handler: f.next},
		Proxy:     Proxy{CertFile: f.pki.FrontProxyClient.CertFile, KeyFile: f.pki.FrontProxyClient.KeyFile},
		pace: discovery.Pace{
			Next: 20 * time.Millisecond, Eager: 10 * time.Millisecond, Grace: 200 * time.Millisecond,
			Remote: 100 * time.Millisecond, Retry: 50 * time.Millisecond,
		},
	}
	for _, c := range change {
		c(&config)
	}
	if f.server, err = New(config); err != nil {
		t.Fatalf("new server: %v", err)
	}
	tiertest.Run(t, f.server.Run)
	f.listen()
	if f.apiServices, err = apiregistrationclient.NewForConfig(tierclient.Config("test", f.server.Delegated())); err != nil {
		t.Fatal(err)
	}
	return f
}

// listen opens the listener of the test.
func (f *fixture) listen() {
	server := httptest.NewUnstartedServer(f.server.Handler())
	server.EnableHTTP2 = true
	server.StartTLS()
	f.url, f.client = server.URL, server.Client()
	f.t.Cleanup(func() {
		f.client.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
}

// ready waits until readyz succeeds.
func (f *fixture) ready() *fixture {
	f.t.Helper()
	f.eventually("readyz is green", func() (bool, string) {
		a := f.get("/readyz?verbose")
		return a.code == http.StatusOK, a.body
	})
	return f
}

func newGeneric() *genericapiserver.Config {
	g := tiertest.NewConfig(scheme.Codecs)
	g.Authentication.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		name := req.Header.Get("Test-User")
		if name == "" {
			name = "admin"
		}
		return &authenticator.Response{User: &user.DefaultInfo{
			Name: name, UID: "uid-of-" + name, Groups: []string{"testers", user.AllAuthenticated},
			Extra: map[string][]string{"example.com/scope": {"a", "b"}},
		}}, true, nil
	})
	g.Authorization.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "mallory" {
			return authorizer.DecisionDeny, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	})
	return g
}

// eventually waits until done reports success; otherwise it fails with the last message of done.
func (f *fixture) eventually(what string, done func() (bool, string)) {
	f.t.Helper()
	tiertest.Eventually(f.t, what, done)
}

// answer is the response to a request.
type answer struct {
	code   int
	header http.Header
	body   string
}

// get sends a GET with headers given as names and values.
func (f *fixture) get(path string, headers ...string) answer {
	f.t.Helper()
	return f.do(http.MethodGet, path, "", headers...)
}

func (f *fixture) do(method, path, body string, headers ...string) answer {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, f.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	client := *f.client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{code: resp.StatusCode, header: resp.Header, body: string(content)}
}

// decode decodes the body as JSON.
func (a answer) decode(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), into); err != nil {
		t.Fatalf("%d %q: %v", a.code, a.body, err)
	}
}

// clusterCA returns the PEM of the CA that signed the serving certificates of extension servers.
func (f *fixture) clusterCA() []byte {
	f.t.Helper()
	content, err := os.ReadFile(f.pki.ClusterCA.CertFile)
	if err != nil {
		f.t.Fatal(err)
	}
	return content
}

// register creates an APIService for a group-version of a server.
func (f *fixture) register(group, version, service string, port int32, change ...func(*apiregistrationv1.APIService)) {
	f.t.Helper()
	object := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 2000, VersionPriority: 10,
			Service:  &apiregistrationv1.ServiceReference{Namespace: "default", Name: service, Port: &port},
			CABundle: f.clusterCA(),
		},
	}
	for _, c := range change {
		c(object)
	}
	if _, err := f.apiServices.ApiregistrationV1().APIServices().Create(f.t.Context(), object, metav1.CreateOptions{}); err != nil {
		f.t.Fatalf("create apiservice: %v", err)
	}
}

// available waits until the condition Available has this status and reason, and returns its message.
func (f *fixture) available(name string, status apiregistrationv1.ConditionStatus, reason string) string {
	f.t.Helper()
	var message string
	f.eventually(fmt.Sprintf("%s is Available=%s, %s", name, status, reason), func() (bool, string) {
		object, err := f.apiServices.ApiregistrationV1().APIServices().Get(f.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type == apiregistrationv1.Available && condition.Status == status && condition.Reason == reason {
				message = condition.Message
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", object.Status)
	})
	return message
}

// trusting returns the TLS configuration of an extension server with its serving certificate. It
// requires a client certificate of the front proxy's CA.
func (f *fixture) trusting() *tls.Config {
	f.t.Helper()
	serving, err := f.pki.Serving["extension"].Load()
	if err != nil {
		f.t.Fatal(err)
	}
	frontProxy, err := os.ReadFile(f.pki.FrontProxyCA.CertFile)
	if err != nil {
		f.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(frontProxy)
	return &tls.Config{
		Certificates: []tls.Certificate{serving},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		NextProtos:   []string{"h2", "http/1.1"},
	}
}

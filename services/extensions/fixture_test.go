package extensions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"triune.dev/services/extensions"
	"triune.dev/services/extensions/internal/scheme"
	"triune.dev/shared/testing/etcdtest"
	"triune.dev/shared/testing/tiertest"
	"triune.dev/shared/transport/loopback"
)

const patience = tiertest.Patience

// fixture is an extensions tier with an etcd of its own and one user with all rights.
type fixture struct {
	server   *extensions.Server
	etcd     *clientv3.Client
	endpoint *endpoint
	crds     apiextensionsclient.Interface
	dynamic  dynamic.Interface
}

// TestMain fails if a goroutine outlives the tests.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Process-wide singletons that libraries start once.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	)
}

// newFixture starts a tier that ends with the test; change may modify its configuration.
func newFixture(t *testing.T, change ...func(*extensions.Config)) *fixture {
	t.Helper()
	f := &fixture{etcd: etcdtest.Start(t).InProcess()}
	config := newConfig(t, f.etcd)
	for _, c := range change {
		c(&config)
	}
	var err error
	if f.server, err = extensions.New(config); err != nil {
		t.Fatalf("new server: %v", err)
	}
	tiertest.Run(t, f.server.Run)
	f.endpoint = listen(t, f.server)
	client := loopback.Config(f.server.Handler, "")
	if f.crds, err = apiextensionsclient.NewForConfig(client); err != nil {
		t.Fatal(err)
	}
	if f.dynamic, err = dynamic.NewForConfig(client); err != nil {
		t.Fatal(err)
	}
	tiertest.Eventually(t, "readyz is green", func() (bool, string) {
		answer := f.do(t, http.MethodGet, "/readyz?verbose", "")
		return answer.code == http.StatusOK, answer.body
	})
	return f
}

// listen serves HTTP until the test ends.
func listen(t *testing.T, server *extensions.Server) *endpoint {
	t.Helper()
	listener := httptest.NewServer(server.Handler())
	t.Cleanup(listener.Close)
	return &endpoint{url: listener.URL, client: listener.Client()}
}

// newConfig returns the minimal configuration of a tier.
func newConfig(t *testing.T, etcd *clientv3.Client) extensions.Config {
	t.Helper()
	g := newGeneric(t)
	return extensions.Config{Generic: g, Storage: tiertest.NewStorage(t, etcd, g)}
}

func newGeneric(t *testing.T) *genericapiserver.Config {
	t.Helper()
	g := tiertest.NewConfig(scheme.Codecs)
	everybody := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	g.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: everybody}, true, nil
	})
	g.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	return g
}

// answer is the response to one request.
type answer struct {
	code   int
	header http.Header
	body   string
}

// status returns the body as a Status.
func (a answer) status(t *testing.T) metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(a.body), &status); err != nil || status.Kind != "Status" {
		t.Fatalf("%d %s is not a Status: %v", a.code, a.body, err)
	}
	return status
}

// object returns the body as an object.
func (a answer) object(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(a.body)); err != nil {
		t.Fatalf("%d %s: %v", a.code, a.body, err)
	}
	return u
}

// endpoint is a server that is reached over HTTP.
type endpoint struct {
	url, token string
	client     *http.Client
}

// send sends a request with headers given as "Name: value", of which later ones
// replace earlier ones.
func (e *endpoint) send(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	if e.token != "" {
		req.Header.Set("Authorization", "Bearer "+e.token)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{code: resp.StatusCode, header: resp.Header, body: string(content)}
}

// do sends a request to the tier with a body in JSON or YAML, or none. A PATCH is
// a merge patch if no header says otherwise.
func (f *fixture) do(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	all := []string{"Accept: application/json"}
	switch {
	case method == http.MethodPatch:
		all = append(all, "Content-Type: application/merge-patch+json")
	case strings.HasPrefix(body, "{"):
		all = append(all, "Content-Type: application/json")
	case body != "":
		all = append(all, "Content-Type: application/yaml")
	}
	return f.endpoint.send(t, method, path, body, append(all, headers...)...)
}

// want fails the test unless the response has this code.
func (a answer) want(t *testing.T, code int) answer {
	t.Helper()
	if a.code != code {
		t.Fatalf("answer %d, want %d: %s", a.code, code, a.body)
	}
	return a
}

// define creates a CRD and waits until it is established.
func (f *fixture) define(t *testing.T, manifest string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict([]byte(manifest), &crd); err != nil {
		t.Fatalf("manifest: %v", err)
	}
	if _, err := f.crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &crd, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create CRD: %v", err)
	}
	return f.established(t, crd.Name)
}

// established waits until the CRD is served under its group-version.
func (f *fixture) established(t *testing.T, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd *apiextensionsv1.CustomResourceDefinition
	tiertest.Eventually(t, name+" is established", func() (bool, string) {
		var err error
		crd, err = f.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established), fmt.Sprintf("%+v", crd.Status)
	})
	for _, v := range crd.Spec.Versions {
		if v.Served {
			tiertest.Eventually(t, name+" is in discovery", func() (bool, string) {
				a := f.do(t, http.MethodGet, "/apis/"+crd.Spec.Group+"/"+v.Name, "")
				return strings.Contains(a.body, `"`+crd.Spec.Names.Plural+`"`), a.body
			})
		}
	}
	return crd
}

// change edits a CRD and waits until the condition holds for the CRD in the table.
func (f *fixture) change(t *testing.T, name string, edit func(*apiextensionsv1.CustomResourceDefinition), what string, condition func() bool) {
	t.Helper()
	tiertest.Eventually(t, "update of "+name, func() (bool, string) {
		crd, err := f.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		edit(crd)
		_, err = f.crds.ApiextensionsV1().CustomResourceDefinitions().Update(t.Context(), crd, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatalf("update CRD: %v", err)
		}
		return err == nil, fmt.Sprint(err)
	})
	tiertest.Eventually(t, what, func() (bool, string) { return condition(), "" })
}

// stored returns the bytes in etcd below /registry.
func (f *fixture) stored(t *testing.T, key string) string {
	t.Helper()
	got, err := f.etcd.Get(t.Context(), "/registry/"+key)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

func widgetsIn(namespace string) (dynamicResource, string) {
	return dynamicResource{schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, namespace},
		"/apis/example.com/v1/namespaces/" + namespace + "/widgets"
}

type dynamicResource struct {
	schema.GroupVersionResource
	namespace string
}

func (r dynamicResource) of(f *fixture) dynamic.ResourceInterface {
	return f.dynamic.Resource(r.GroupVersionResource).Namespace(r.namespace)
}

package extensions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/kube-openapi/pkg/common"
	"sigs.k8s.io/yaml"

	"triune.dev/services/extensions"
	"triune.dev/services/extensions/internal/scheme"
	"triune.dev/shared/storage"
	"triune.dev/shared/storage/etcdembed"
	"triune.dev/shared/transport/loopback"
)

// patience bounds every wait of these tests.
const patience = 20 * time.Second

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
	f := &fixture{etcd: startEtcd(t)}
	config := newConfig(t, f.etcd)
	for _, c := range change {
		c(&config)
	}
	var err error
	if f.server, err = extensions.New(config); err != nil {
		t.Fatalf("new server: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(patience):
			t.Error("the server does not end")
		}
	})
	f.endpoint = listen(t, f.server)
	client := loopback.Config(f.server.Handler, "")
	if f.crds, err = apiextensionsclient.NewForConfig(client); err != nil {
		t.Fatal(err)
	}
	if f.dynamic, err = dynamic.NewForConfig(client); err != nil {
		t.Fatal(err)
	}
	eventually(t, "readyz is green", func() (bool, string) {
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

func startEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = filepath.Join(t.TempDir(), "etcd")
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 10, 100
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = local, local
	config.ListenPeerUrls, config.AdvertisePeerUrls = local, local
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	member, err := etcdembed.Start(ctx, config)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	t.Cleanup(member.Close)
	return member.Client
}

// newStorage opens the storage of a tier, as its command does, until the test ends.
func newStorage(t *testing.T, etcd *clientv3.Client, g *genericapiserver.Config) generic.RESTOptionsGetter {
	t.Helper()
	options := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	store, err := storage.Open(t.Context(), storage.Options{Etcd: options, Client: etcd}, g)
	if err != nil {
		t.Fatalf("open the storage: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("storage: %v", err)
		}
		store.Close()
	})
	return store.RESTOptions()
}

// newConfig returns the minimal configuration of a tier.
func newConfig(t *testing.T, etcd *clientv3.Client) extensions.Config {
	t.Helper()
	g := newGeneric(t)
	return extensions.Config{Generic: g, Storage: newStorage(t, etcd, g)}
}

func newGeneric(t *testing.T) *genericapiserver.Config {
	t.Helper()
	g := genericapiserver.NewConfig(scheme.Codecs)
	g.FeatureGate = utilfeature.DefaultFeatureGate
	g.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	g.ExternalAddress = "127.0.0.1:443"
	g.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())
	g.OpenAPIConfig = &common.Config{}
	everybody := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	g.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: everybody}, true, nil
	})
	g.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	return g
}

// eventually waits until done reports success; a failure contains its last message.
func eventually(t *testing.T, what string, done func() (bool, string)) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, patience, true, func(context.Context) (ok bool, err error) {
		ok, last = done()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("%s: not after %s: %s", what, patience, last)
	}
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
	eventually(t, name+" is established", func() (bool, string) {
		var err error
		crd, err = f.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established), fmt.Sprintf("%+v", crd.Status)
	})
	for _, v := range crd.Spec.Versions {
		if v.Served {
			eventually(t, name+" is in discovery", func() (bool, string) {
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
	eventually(t, "update of "+name, func() (bool, string) {
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
	eventually(t, what, func() (bool, string) { return condition(), "" })
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

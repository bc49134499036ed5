package extensions_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"

	"triune.dev/services/extensions"
	"triune.dev/shared/testing/etcdtest"
	"triune.dev/shared/testing/tiertest"
	"triune.dev/shared/transport/tierclient"
)

// next returns the next event of a watch; ok is false when the watch has ended.
func next(t *testing.T, w watch.Interface) (event watch.Event, ok bool) {
	t.Helper()
	select {
	case event, ok = <-w.ResultChan():
		return event, ok
	case <-time.After(patience):
		t.Fatal("no event")
		return event, false
	}
}

// A watch gets the events of its selector, with DELETED for an object that no longer matches.
// It ends when the CRD changes, and a new watch resumes it.
func TestWatch(t *testing.T) {
	f := newFixture(t)
	f.define(t, widgetsCRD)
	resource, path := widgetsIn("default")
	w, err := resource.of(f).Watch(t.Context(), metav1.ListOptions{LabelSelector: "tier=a"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	f.do(t, http.MethodPost, path, named("unlabelled")).want(t, http.StatusCreated)
	f.do(t, http.MethodPost, path, strings.Replace(named("one"), "name: one", "name: one, labels: {tier: a}", 1)).want(t, http.StatusCreated)
	f.do(t, http.MethodPatch, path+"/one", `{"metadata":{"labels":{"tier":"b"}}}`).want(t, http.StatusOK)
	var last *unstructured.Unstructured
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		event, ok := next(t, w)
		if !ok || event.Type != want {
			t.Fatalf("event %v of %v, want %s", event.Type, event.Object, want)
		}
		last = event.Object.(*unstructured.Unstructured)
		if last.GetName() != "one" || last.GetLabels()["tier"] != "a" {
			t.Errorf("%s: %v", want, last.Object)
		}
	}

	f.change(t, "widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		spec.Properties["shape"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"round"`)}}
	}, "objects are read with the new default", func() bool {
		u := f.do(t, http.MethodGet, path+"/one", "").want(t, http.StatusOK).object(t)
		return nested(t, u, "spec.shape") == "round"
	})
	if event, ok := next(t, w); ok {
		t.Fatalf("the watch goes on after the CRD has changed: %v", event)
	}
	resumed, err := resource.of(f).Watch(t.Context(), metav1.ListOptions{ResourceVersion: last.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Stop()
	f.do(t, http.MethodPost, path, named("two")).want(t, http.StatusCreated)
	event, ok := next(t, resumed)
	if !ok || event.Type != watch.Added || event.Object.(*unstructured.Unstructured).GetName() != "two" {
		t.Fatalf("resumed watch: %v", event)
	}
}

// A version exists exactly while the CRD in the table serves it.
func TestServedVersions(t *testing.T) {
	f := newFixture(t)
	f.define(t, versionedCRD)
	const name = "gadgets.example.com"
	code := func(version string) int {
		return f.do(t, http.MethodGet, "/apis/example.com/"+version+"/gadgets", "").code
	}
	if code("v1alpha1") != http.StatusOK || code("v1alpha0") != http.StatusNotFound || code("v3") != http.StatusNotFound {
		t.Errorf("v1alpha1 %d, v1alpha0 %d, v3 %d", code("v1alpha1"), code("v1alpha0"), code("v3"))
	}
	f.change(t, name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[1].Served = false
		crd.Spec.Versions[2].Served = true
	}, "v1alpha1 is not served", func() bool { return code("v1alpha1") == http.StatusNotFound })
	if code("v1alpha0") != http.StatusOK || code("v1") != http.StatusOK {
		t.Errorf("v1alpha0 %d, v1 %d", code("v1alpha0"), code("v1"))
	}
	// Another controller than that of the paths maintains discovery, as in kube-apiserver.
	tiertest.Eventually(t, "v1alpha1 is not in discovery", func() (bool, string) {
		resources, err := f.crds.Discovery().ServerResourcesForGroupVersion("example.com/v1alpha1")
		return err != nil, fmt.Sprint(resources)
	})
}

// The deletion of a CRD deletes its objects and then its path, and a new CRD of the same name
// has no objects. Deleting a collection of CRDs is no different; kube-apiserver leaves the
// objects of those behind.
func TestDeletionTakesObjects(t *testing.T) {
	for _, test := range []struct{ name, path string }{
		{"one CRD", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"},
		{"a collection", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?labelSelector=!keep"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			f.define(t, widgetsCRD)
			_, path := widgetsIn("default")
			f.do(t, http.MethodPost, path, named("one")).want(t, http.StatusCreated)
			f.do(t, http.MethodDelete, test.path, "").want(t, http.StatusOK)
			tiertest.Eventually(t, "the path is gone", func() (bool, string) {
				a := f.do(t, http.MethodGet, path, "")
				return a.code == http.StatusNotFound, a.body
			})
			if left := f.stored(t, "example.com/widgets/default/one"); left != "" {
				t.Errorf("left in etcd: %s", left)
			}
			tiertest.Eventually(t, "discovery is empty", func() (bool, string) {
				a := f.do(t, http.MethodGet, "/apis/example.com", "")
				return a.code == http.StatusNotFound, a.body
			})
			f.define(t, widgetsCRD)
			list := f.do(t, http.MethodGet, path, "").want(t, http.StatusOK).object(t)
			if items := nested(t, list, "items").([]any); len(items) != 0 {
				t.Errorf("the new CRD begins with %v", items)
			}
		})
	}
}

// The response to an unknown path is a Status. That of kube-apiserver is plain text, from
// which clients make the same error.
func TestNotFound(t *testing.T) {
	f := newFixture(t)
	f.define(t, widgetsCRD)
	for _, path := range []string{
		"/nothing",
		"/apis/nothing.example.com",
		"/apis/nothing.example.com/v1",
		"/apis/nothing.example.com/v1/things",
		"/apis/example.com/v1/namespaces/default/things",
		"/apis/example.com/v2/namespaces/default/widgets",
		"/apis/example.com/v1/widgets/one",
		"/api/v1/pods",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			s := f.do(t, method, path, "").want(t, http.StatusNotFound).status(t)
			if s.Reason != metav1.StatusReasonNotFound || s.Message != "the server could not find the requested resource" {
				t.Errorf("%s %s: %+v", method, path, s)
			}
		}
	}
}

// Until the CRDs are known, no response is 404: a garbage collector would delete objects by
// mistake.
func TestUnknownBeforeCRDsAreKnown(t *testing.T) {
	server, err := extensions.New(newConfig(t, etcdtest.Start(t).InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	server.Server().Prepare() // it answers then; the hooks that read CRDs do not run
	f := &fixture{server: server, endpoint: listen(t, server)}
	a := f.do(t, http.MethodGet, "/apis/example.com/v1/widgets", "").want(t, http.StatusServiceUnavailable)
	s := a.status(t)
	if s.Details == nil || s.Details.RetryAfterSeconds != 5 || a.header.Get("Retry-After") != "5" {
		t.Errorf("status %+v, header %v", s, a.header)
	}
	if want := "the request has been made before all known HTTP paths have been installed, please try again"; s.Message != want {
		t.Errorf("message %q, want %q", s.Message, want)
	}
}

// The same holds during the shutdown: a late request must not conclude that a CRD was
// deleted.
func TestUnknownAfterTheEnd(t *testing.T) {
	server, err := extensions.New(newConfig(t, etcdtest.Start(t).InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Run(ctx); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	delegated := tierclient.As(&user.DefaultInfo{Name: "late"}, server.Delegated())
	delegated.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/apis/example.com/v1/widgets", nil))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("answer %d %s", w.Code, w.Body)
	}
}

// kube-apiserver panics on it and closes the connection.
func TestProtobufBody(t *testing.T) {
	f := newFixture(t)
	f.define(t, widgetsCRD)
	_, path := widgetsIn("default")
	for _, mode := range []string{"Strict", "Warn", "Ignore"} {
		f.do(t, http.MethodPost, path+"?fieldValidation="+mode, "k8s\x00nonsense", "Content-Type: application/vnd.kubernetes.protobuf").
			want(t, http.StatusBadRequest)
	}
}

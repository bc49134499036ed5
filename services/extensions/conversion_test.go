package extensions_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// converter is a conversion webhook: size in v1 is dimensions.width in v1alpha1.
type converter struct {
	*httptest.Server
	calls atomic.Int32
	fail  atomic.Bool
}

func newConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{}
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *converter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.calls.Add(1)
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	if c.fail.Load() {
		response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "not today"}
	}
	for _, object := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(object.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		convert(u, review.Request.DesiredAPIVersion)
		raw, err := u.MarshalJSON()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Raw: raw})
	}
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client may be gone
}

func convert(u *unstructured.Unstructured, to string) {
	size, _, _ := unstructured.NestedInt64(u.Object, "spec", "size")
	width, _, _ := unstructured.NestedInt64(u.Object, "spec", "dimensions", "width")
	spec := map[string]any{"size": width}
	if strings.HasSuffix(to, "v1alpha1") {
		spec = map[string]any{"dimensions": map[string]any{"width": size}, "unknown": "pruned"}
	}
	u.Object["spec"] = spec
	u.SetAPIVersion(to)
}

func convertedCRD(c *converter) string {
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw}))
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {url: "` + c.URL + `", caBundle: ` + ca + `}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
  - name: v1alpha1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {dimensions: {type: object, properties: {width: {type: integer}}}}}}}}
`
}

func TestWebhookConversion(t *testing.T) {
	c := newConverter(t)
	f := newFixture(t)
	f.define(t, convertedCRD(c))
	const v1, v1alpha1 = "/apis/example.com/v1/gadgets", "/apis/example.com/v1alpha1/gadgets"

	f.do(t, http.MethodPost, v1alpha1, `{"apiVersion":"example.com/v1alpha1","kind":"Gadget","metadata":{"name":"one"},"spec":{"dimensions":{"width":4}}}`).want(t, http.StatusCreated)
	if stored := f.stored(t, "example.com/gadgets/one"); !strings.Contains(stored, `"spec":{"size":4}`) || !strings.Contains(stored, `"apiVersion":"example.com/v1"`) {
		t.Errorf("stored as %s", stored)
	}
	before := c.calls.Load()
	u := f.do(t, http.MethodGet, v1+"/one", "").want(t, http.StatusOK).object(t)
	if nested(t, u, "spec.size") != int64(4) || c.calls.Load() != before {
		t.Errorf("in the storage version: %v after %d calls", u.Object, c.calls.Load()-before)
	}
	u = f.do(t, http.MethodGet, v1alpha1+"/one", "").want(t, http.StatusOK).object(t)
	if nested(t, u, "spec.dimensions.width") != int64(4) || nested(t, u, "spec.unknown") != nil {
		t.Errorf("converted: %v", u.Object)
	}
	u = f.do(t, http.MethodPatch, v1alpha1+"/one", `{"spec":{"dimensions":{"width":5}}}`).want(t, http.StatusOK).object(t)
	if u.GetGeneration() != 2 {
		t.Errorf("generation %d after a patch", u.GetGeneration())
	}
	list := f.do(t, http.MethodGet, v1alpha1, "").want(t, http.StatusOK).object(t)
	if items := nested(t, list, "items").([]any); len(items) != 1 || items[0].(map[string]any)["apiVersion"] != "example.com/v1alpha1" {
		t.Errorf("list %v", list.Object)
	}

	// Converted objects are not converted again, so these have changed.
	t.Run("a webhook that refuses", func(t *testing.T) {
		f.do(t, http.MethodPatch, v1+"/one", `{"spec":{"size":6}}`).want(t, http.StatusOK)
		c.fail.Store(true)
		defer c.fail.Store(false)
		s := f.do(t, http.MethodGet, v1alpha1+"/one", "").want(t, http.StatusInternalServerError).status(t)
		if want := "conversion webhook for example.com/v1, Kind=Gadget failed: not today"; s.Message != want {
			t.Errorf("message %q, want %q", s.Message, want)
		}
		f.do(t, http.MethodGet, v1+"/one", "").want(t, http.StatusOK)
	})
	t.Run("a webhook that is down", func(t *testing.T) {
		f.do(t, http.MethodPatch, v1+"/one", `{"spec":{"size":7}}`).want(t, http.StatusOK)
		c.Close()
		s := f.do(t, http.MethodGet, v1alpha1+"/one", "").want(t, http.StatusInternalServerError).status(t)
		if !strings.HasPrefix(s.Message, "conversion webhook for example.com/v1, Kind=Gadget failed: Post") {
			t.Errorf("message %q", s.Message)
		}
		f.do(t, http.MethodGet, v1+"/one", "").want(t, http.StatusOK)
	})
}

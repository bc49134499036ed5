package openapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"triune.dev/shared/server/resources"
)

// The tests describe a tier that serves a part of autoscaling/v1, with real types and generated
// definitions, and with storages made only to be described.

// everything is a storage of a namespaced resource that supports all verbs and returns deleted
// objects.
type everything struct{ rest.StandardStorage }

func (everything) New() runtime.Object              { return &autoscalingv1.HorizontalPodAutoscaler{} }
func (everything) NewList() runtime.Object          { return &autoscalingv1.HorizontalPodAutoscalerList{} }
func (everything) Destroy()                         {}
func (everything) NamespaceScoped() bool            { return true }
func (everything) GetSingularName() string          { return "horizontalpodautoscaler" }
func (everything) DeleteReturnsDeletedObject() bool { return true }
func (everything) ConvertToTable(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error) {
	return nil, nil
}

// cluster is a storage of a cluster-scoped resource that supports only list, get and delete.
type cluster struct {
	rest.Getter
	rest.Lister
	rest.GracefulDeleter
}

func (cluster) New() runtime.Object     { return &autoscalingv1.HorizontalPodAutoscaler{} }
func (cluster) NewList() runtime.Object { return &autoscalingv1.HorizontalPodAutoscalerList{} }
func (cluster) Destroy()                {}
func (cluster) NamespaceScoped() bool   { return false }
func (cluster) GetSingularName() string { return "policies" }
func (cluster) ConvertToTable(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error) {
	return nil, nil
}

// scale is a subresource whose kind differs from its parent's.
type scale struct {
	rest.Getter
	rest.Updater
}

func (scale) New() runtime.Object { return &autoscalingv1.Scale{} }
func (scale) Destroy()            {}

// binding is a subresource that supports only create.
type binding struct{ rest.NamedCreater }

func (binding) New() runtime.Object { return &autoscalingv1.Scale{} }
func (binding) Destroy()            {}

// proxy is a subresource that supports connect, with a path below it.
type proxy struct{ rest.Connecter }

func (proxy) New() runtime.Object { return &autoscalingv1.HorizontalPodAutoscaler{} }
func (proxy) Destroy()            {}
func (proxy) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodProxyOptions{}, true, "path"
}
func (proxy) ConnectMethods() []string { return []string{http.MethodGet, http.MethodPost} }

// log is a subresource that supports get with its own options, and returns text.
type log struct{ rest.GetterWithOptions }

func (log) New() runtime.Object { return &autoscalingv1.HorizontalPodAutoscaler{} }
func (log) Destroy()            {}
func (log) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}
func (log) ProducesMIMETypes(string) []string { return []string{"text/plain"} }
func (log) ProducesObject(string) any         { return "" }

// tier is a service that counts how often its definitions are generated.
type tier struct {
	*Service
	table *resources.Table
	made  *int // number of times that definitions were generated
}

func newTier(t testing.TB) tier {
	t.Helper()
	made := 0
	s := New(Config{
		Definitions: func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
			made++
			return generated.GetOpenAPIDefinitions(ref)
		},
		Schemes: []*runtime.Scheme{scheme.Scheme},
		Title:   "Kubernetes",
		Version: "1.36",
		SecurityDefinitions: spec.SecurityDefinitions{"BearerToken": &spec.SecurityScheme{SecuritySchemeProps: spec.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
		}}},
	})
	served := resources.New(resources.Config{
		Equivalents:   runtime.NewEquivalentResourceRegistry(),
		TypeConverter: s.TypeConverter,
		Major:         1,
		Minor:         36,
	})
	gv := schema.GroupVersion{Group: "autoscaling", Version: "v1"}
	info := &genericapiserver.APIGroupInfo{
		PrioritizedVersions: []schema.GroupVersion{gv},
		VersionedResourcesStorageMap: map[string]map[string]rest.Storage{"v1": {
			"horizontalpodautoscalers":         everything{},
			"horizontalpodautoscalers/binding": binding{},
			"horizontalpodautoscalers/log":     log{},
			"horizontalpodautoscalers/proxy":   proxy{},
			"horizontalpodautoscalers/scale":   scale{},
			"policies":                         cluster{},
		}},
		OptionsExternalVersion: &schema.GroupVersion{Version: "v1"},
		Scheme:                 scheme.Scheme,
		NegotiatedSerializer:   scheme.Codecs,
		ParameterCodec:         scheme.ParameterCodec,
	}
	if err := served.Install(resources.GroupPrefix, info); err != nil {
		t.Fatal(err)
	}
	s.Describe(served, Version())
	return tier{Service: s, table: served, made: &made}
}

var codecs = scheme.Codecs

// get sends a GET to a handler; header alternates names and values.
func get(h http.Handler, path string, header ...string) *http.Response {
	req := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

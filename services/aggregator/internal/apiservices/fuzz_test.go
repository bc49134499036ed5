package apiservices

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"k8s.io/apiserver/pkg/server/mux"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"triune.dev/services/aggregator/internal/remote"
)

// FuzzGroupVersionOf checks arbitrary paths: the group-version must be the one for which AddAPIService
// of kube-apiserver's aggregator registers the path.
func FuzzGroupVersionOf(f *testing.F) {
	all := []*apiregistrationv1.APIService{
		apiService("g.io", "v1", 1, 1, "a"), apiService("g.io", "v10", 1, 1, "b"), apiService("g.io.more", "v1", 1, 1, "c"),
		apiService("", "v1", 1, 1, "d"), apiService("local.io", "v1", 1, 1, ""),
	}
	s := Build(all, nil, func(a *apiregistrationv1.APIService) *remote.Backend { return remote.New(a, remote.Network{}) })
	router := mux.NewPathRecorderMux("aggregator")
	router.NotFoundHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, a := range all {
		if a.Spec.Service == nil {
			continue
		}
		prefix := "/apis/" + a.Spec.Group + "/" + a.Spec.Version
		if a.Spec.Group == "" {
			prefix = "/api"
		}
		named := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Name", a.Name) })
		router.Handle(prefix, named)
		router.UnlistedHandlePrefix(prefix+"/", named)
	}
	for _, path := range []string{
		"/apis/g.io/v1", "/apis/g.io/v1/", "/apis/g.io/v10/a/b", "/apis/g.io/v1x", "/apis/g.io.more/v1//", "/apis//v1", "/apis/g.io//v1", "/api", "/api/", "/apiv1", "/apis/local.io/v1",
		"//apis/g.io/v1", "/apis/./g.io/v1", "/apis/g.io/v1/../v10", "", "*", "/apis/G.io/v1",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		got := ""
		if gv, ok := GroupVersionOf(path); ok {
			if backend := s.Backend(gv); backend != nil {
				got = backend.APIService().Name
			}
		}
		w := httptest.NewRecorder()
		router.ServeHTTP(w, &http.Request{URL: &url.URL{Path: path}})
		if want := w.Header().Get("Name"); got != want {
			t.Errorf("%q is served by %q, want %q", path, got, want)
		}
	})
}

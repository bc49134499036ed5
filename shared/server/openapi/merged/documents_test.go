package merged

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/shared/server/openapi"
	"triune.dev/shared/transport/documents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a server with its own documents that can be down or slow.
type fake struct {
	documents *openapi.Documents
	down      atomic.Bool
	hang      atomic.Pointer[chan struct{}]
	asked     atomic.Int32
}

func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f.asked.Add(1)
	if hang := f.hang.Load(); hang != nil {
		select {
		case <-*hang:
		case <-req.Context().Done():
			return
		}
	}
	if f.down.Load() {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	f.documents.ServeHTTP(w, req)
}

func (f *fake) source(name string, gvs ...schema.GroupVersion) Source {
	return Source{Name: name, From: documents.Handler(f), Handler: f, GroupVersions: gvs, Fresh: time.Nanosecond, Patience: 5 * time.Second}
}

func static(content string) openapi.Source {
	return openapi.Source{Build: func() ([]byte, error) { return []byte(content), nil }}
}

func specOf(path, definition, schema string) string {
	return `{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{"` + path + `":{"get":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/` +
		definition + `"}}}}}},"definitions":{"` + definition + `":` + schema + `}}`
}

func serving(v2 string, v3 ...string) *fake {
	f := &fake{documents: openapi.NewDocuments()}
	if v2 != "" {
		f.documents.SetV2(static(v2))
	}
	for _, path := range v3 {
		f.documents.SetV3(path, static(`{"openapi":"3.0.0","info":{"title":"`+path+`","version":"v"}}`))
	}
	return f
}

func get(t *testing.T, h http.Handler, path string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, path, nil)
	if header != nil {
		req.Header = header
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func pathsOf(t *testing.T, h http.Handler) []string {
	t.Helper()
	w := get(t, h, "/openapi/v3", nil)
	if w.Code != http.StatusOK {
		t.Fatalf("GET /openapi/v3: status %d", w.Code)
	}
	var index openapi.Index
	if err := json.Unmarshal(w.Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for path := range index.Paths {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

func pathsV2(t *testing.T, h http.Handler) []string {
	t.Helper()
	w := get(t, h, "/openapi/v2", nil)
	if w.Code != http.StatusOK {
		t.Fatalf("GET /openapi/v2: status %d", w.Code)
	}
	var document struct {
		Paths map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for path := range document.Paths {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

var flunders = schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}

func TestIndexJoinsServers(t *testing.T) {
	own := serving("", "apis/apiregistration.k8s.io/v1")
	next := serving("", "api/v1", "apis/apps/v1", "version")
	extension := serving("", "apis", "version", "apis/wardle.example.com", "apis/wardle.example.com/v1", "apis/apps/v1")
	d := NewDocuments(own.source("own"), next.source("next"), extension.source("wardle", flunders))
	defer d.Close()

	want := []string{"api/v1", "apis/apiregistration.k8s.io/v1", "apis/apps/v1", "apis/wardle.example.com", "apis/wardle.example.com/v1", "version"}
	if diff := cmp.Diff(want, pathsOf(t, d)); diff != "" {
		t.Errorf("index (-want +got)\n%s", diff)
	}
	if w := get(t, d, "/openapi/v3/apis/wardle.example.com/v1", nil); w.Code != http.StatusOK || w.Header().Get("Etag") == "" {
		t.Errorf("document of the extension server: status %d, ETag %q", w.Code, w.Header().Get("Etag"))
	}
	if w := get(t, d, "/openapi/v3/apis/nothing/v1", nil); w.Code != http.StatusNotFound {
		t.Errorf("unknown document: status %d, want 404", w.Code)
	}
}

func TestIndexHasETag(t *testing.T) {
	next := serving("", "api/v1")
	d := NewDocuments(next.source("next"))
	defer d.Close()
	tag := get(t, d, "/openapi/v3", nil).Header().Get("Etag")
	if w := get(t, d, "/openapi/v3", http.Header{"If-None-Match": {tag}}); w.Code != http.StatusNotModified {
		t.Errorf("unchanged: status %d, want 304", w.Code)
	}
	next.documents.SetV3("apis/new/v1", static(`{"openapi":"3.0.0"}`))
	if w := get(t, d, "/openapi/v3", http.Header{"If-None-Match": {tag}}); w.Code != http.StatusOK {
		t.Errorf("changed: status %d, want 200", w.Code)
	}
}

// TestClaimedGroupVersionIsItsServersAlone: an APIService with a Service takes a group-version
// away from a tier that also has it.
func TestClaimedGroupVersionIsItsServersAlone(t *testing.T) {
	next := serving(specOf("/apis/wardle.example.com/v1/", "Old", `{"type":"string"}`), "apis/wardle.example.com/v1")
	extension := serving(specOf("/apis/wardle.example.com/v1/", "New", `{"type":"string"}`), "apis/wardle.example.com/v1")
	d := NewDocuments(next.source("next"), extension.source("wardle", flunders))
	defer d.Close()
	get(t, d, "/openapi/v3", nil)
	before := next.asked.Load()
	get(t, d, "/openapi/v3/apis/wardle.example.com/v1", nil)
	if asked := next.asked.Load() - before; asked != 1 { // its index, once
		t.Errorf("the next tier was asked %d times, want 1", asked)
	}
	var document struct{ Definitions map[string]any }
	if err := json.Unmarshal(get(t, d, "/openapi/v2", nil).Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	if _, ok := document.Definitions["New"]; !ok || len(document.Definitions) != 1 {
		t.Errorf("definitions: got %v, want only New", document.Definitions)
	}
}

func TestV2MergesAndTakesOnlyClaimedPaths(t *testing.T) {
	own := serving(specOf("/apis/apiregistration.k8s.io/v1/", "APIService", `{"type":"object"}`))
	next := serving(specOf("/api/v1/", "Pod", `{"type":"object"}`))
	extension := serving(`{"swagger":"2.0","paths":{"/version/":{},"/apis/wardle.example.com/v1/":{"$ref":"#/definitions/Pod"}},"definitions":{"Pod":{"type":"integer"}}}`)
	d := NewDocuments(own.source("own"), next.source("next"), extension.source("wardle", flunders))
	defer d.Close()
	want := []string{"/api/v1/", "/apis/apiregistration.k8s.io/v1/", "/apis/wardle.example.com/v1/"}
	if diff := cmp.Diff(want, pathsV2(t, d)); diff != "" {
		t.Errorf("paths (-want +got)\n%s", diff)
	}
	w := get(t, d, "/openapi/v2", http.Header{"Accept": {"application/com.github.proto-openapi.spec.v2@v1.0+protobuf"}})
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" {
		t.Errorf("protobuf: status %d, Content-Type %q", w.Code, w.Header().Get("Content-Type"))
	}
	if w := get(t, d, "/openapi/v2", http.Header{"If-None-Match": {w.Header().Get("Etag")}}); w.Code != http.StatusNotModified {
		t.Errorf("unchanged: status %d, want 304", w.Code)
	}
}

// TestServerWithoutV3: servers built before Kubernetes 1.24 have only v2.
func TestServerWithoutV3(t *testing.T) {
	next := serving("", "api/v1")
	old := serving(specOf("/apis/wardle.example.com/v1/", "Flunder", `{"type":"object"}`))
	mux := http.NewServeMux()
	mux.Handle("/openapi/v2", old)
	source := Source{Name: "old", From: documents.Handler(mux), Handler: mux, GroupVersions: []schema.GroupVersion{flunders}, Patience: 5 * time.Second}
	d := NewDocuments(next.source("next"), source)
	defer d.Close()
	if diff := cmp.Diff([]string{"api/v1", "apis/wardle.example.com/v1"}, pathsOf(t, d)); diff != "" {
		t.Errorf("index (-want +got)\n%s", diff)
	}
	w := get(t, d, "/openapi/v3/apis/wardle.example.com/v1", nil)
	var document struct {
		OpenAPI    string `json:"openapi"`
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatalf("status %d: %v", w.Code, err)
	}
	if document.OpenAPI != "3.0.0" || document.Components.Schemas["Flunder"] == nil {
		t.Errorf("converted document: got %s", w.Body)
	}
}

func TestDownServerMakesItPartial(t *testing.T) {
	next := serving(specOf("/api/v1/", "Pod", `{"type":"object"}`), "api/v1")
	extension := serving(specOf("/apis/wardle.example.com/v1/", "Flunder", `{"type":"object"}`), "apis/wardle.example.com/v1")
	extension.down.Store(true)
	d := NewDocuments(next.source("next"), extension.source("wardle", flunders))
	defer d.Close()
	if diff := cmp.Diff([]string{"api/v1"}, pathsOf(t, d)); diff != "" {
		t.Errorf("index while down from the start (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/api/v1/"}, pathsV2(t, d)); diff != "" {
		t.Errorf("v2 while down from the start (-want +got)\n%s", diff)
	}
	extension.down.Store(false)
	d.Forget("wardle")
	both := []string{"api/v1", "apis/wardle.example.com/v1"}
	if diff := cmp.Diff(both, pathsOf(t, d)); diff != "" {
		t.Errorf("index when up (-want +got)\n%s", diff)
	}
	extension.down.Store(true)
	if diff := cmp.Diff(both, pathsOf(t, d)); diff != "" {
		t.Errorf("index when down again, which must be the last known one (-want +got)\n%s", diff)
	}
}

func TestSlowServerDoesNotMakeItSlow(t *testing.T) {
	next := serving("", "api/v1")
	slow := serving("", "apis/wardle.example.com/v1")
	never := make(chan struct{})
	slow.hang.Store(&never)
	source := slow.source("slow", flunders)
	source.Patience = 50 * time.Millisecond
	d := NewDocuments(next.source("next"), source)
	defer d.Close()
	start := time.Now()
	if diff := cmp.Diff([]string{"api/v1"}, pathsOf(t, d)); diff != "" {
		t.Errorf("index (-want +got)\n%s", diff)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("the index took %v", took)
	}
	// The late answer is used by the next request.
	close(never)
	deadline := time.Now().Add(10 * time.Second)
	for len(pathsOf(t, d)) != 2 {
		if time.Now().After(deadline) {
			t.Fatal("the late answer was lost")
		}
	}
}

func TestConcurrentRequestsAskOnce(t *testing.T) {
	next := serving("", "api/v1")
	hold := make(chan struct{})
	next.hang.Store(&hold)
	source := next.source("next")
	source.Fresh = time.Hour
	d := NewDocuments(source)
	defer d.Close()
	done := make(chan int)
	for range 10 {
		go func() { done <- get(t, d, "/openapi/v3", nil).Code }()
	}
	close(hold)
	for range 10 {
		if code := <-done; code != http.StatusOK {
			t.Errorf("status %d", code)
		}
	}
	if asked := next.asked.Load(); asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
}

func TestSourcesKeepWhatIsKnown(t *testing.T) {
	extension := serving("", "apis/wardle.example.com/v1")
	d := NewDocuments(extension.source("wardle", flunders))
	defer d.Close()
	pathsOf(t, d)
	extension.down.Store(true)
	d.SetSources([]Source{extension.source("wardle", flunders)})
	if diff := cmp.Diff([]string{"apis/wardle.example.com/v1"}, pathsOf(t, d)); diff != "" {
		t.Errorf("same source (-want +got)\n%s", diff)
	}
	d.SetSources(nil)
	if got := pathsOf(t, d); len(got) != 0 {
		t.Errorf("no source: got %v", got)
	}
}

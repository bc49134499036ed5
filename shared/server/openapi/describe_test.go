package openapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files instead of comparing with them")

// TestEveryOperation compares the description of every operation with golden transcripts that
// list each verb at each level.
func TestEveryOperation(t *testing.T) {
	served := newTier(t)
	v3 := decode[spec3.OpenAPI](t, served, "/openapi/v3/apis/autoscaling/v1")
	golden(t, "operations.v3.txt", transcriptV3(v3))
	v2 := decode[spec.Swagger](t, served, "/openapi/v2")
	golden(t, "operations.v2.txt", transcriptV2(v2))
}

func decode[T any](t *testing.T, served tier, path string) *T {
	t.Helper()
	res := get(served.Documents(), path)
	if res.StatusCode != 200 {
		t.Fatalf("GET %s: %s", path, res.Status)
	}
	content, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	document := new(T)
	if err := json.Unmarshal(content, document); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return document
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs, -want +got:\n%s", file, diff)
	}
}

func transcriptV3(document *spec3.OpenAPI) string {
	var b bytes.Buffer
	for _, path := range slices.Sorted(maps.Keys(document.Paths.Paths)) {
		item := document.Paths.Paths[path]
		fmt.Fprintf(&b, "%s%s\n", path, parametersV3(item.Parameters))
		for _, o := range []struct {
			method    string
			operation *spec3.Operation
		}{{"GET", item.Get}, {"POST", item.Post}, {"PUT", item.Put}, {"PATCH", item.Patch}, {"DELETE", item.Delete}} {
			if o.operation == nil {
				continue
			}
			fmt.Fprintf(&b, "  %s %s%s\n    %s\n", o.method, o.operation.OperationId, parametersV3(o.operation.Parameters), o.operation.Description)
			if body := o.operation.RequestBody; body != nil {
				fmt.Fprintf(&b, "    reads %s required=%t\n", contentV3(body.Content), body.Required)
			}
			for _, code := range slices.Sorted(maps.Keys(o.operation.Responses.StatusCodeResponses)) {
				response := o.operation.Responses.StatusCodeResponses[code]
				fmt.Fprintf(&b, "    %d %s %s\n", code, response.Description, contentV3(response.Content))
			}
			fmt.Fprintf(&b, "    %v\n", extensions(o.operation.Extensions))
		}
	}
	return b.String()
}

func parametersV3(parameters []*spec3.Parameter) string {
	var b strings.Builder
	for _, p := range parameters {
		fmt.Fprintf(&b, " %s:%s:%s", p.In, p.Name, strings.Join(p.Schema.Type, ""))
		if p.Description == "" {
			b.WriteString("(undocumented)")
		}
	}
	return b.String()
}

func contentV3(content map[string]*spec3.MediaType) string {
	var all []string
	for _, mediaType := range slices.Sorted(maps.Keys(content)) {
		of := content[mediaType].Schema
		all = append(all, mediaType+"="+strings.TrimPrefix(of.Ref.String(), refV3)+strings.Join(of.Type, ""))
	}
	return strings.Join(all, " ")
}

func extensions(e spec.Extensions) string {
	encoded, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(encoded)
}

func transcriptV2(document *spec.Swagger) string {
	var b bytes.Buffer
	for _, path := range slices.Sorted(maps.Keys(document.Paths.Paths)) {
		item := document.Paths.Paths[path]
		fmt.Fprintf(&b, "%s\n", path)
		for _, o := range []struct {
			method    string
			operation *spec.Operation
		}{{"GET", item.Get}, {"POST", item.Post}, {"PUT", item.Put}, {"PATCH", item.Patch}, {"DELETE", item.Delete}} {
			if o.operation == nil {
				continue
			}
			fmt.Fprintf(&b, "  %s %s %s -> %s\n", o.method, o.operation.ID, o.operation.Consumes, o.operation.Produces)
			for _, code := range slices.Sorted(maps.Keys(o.operation.Responses.StatusCodeResponses)) {
				if of := o.operation.Responses.StatusCodeResponses[code].Schema; of != nil {
					fmt.Fprintf(&b, "    %d %s%s\n", code, strings.TrimPrefix(of.Ref.String(), refV2), strings.Join(of.Type, ""))
				}
			}
		}
	}
	return b.String()
}

// TestOptionsInTheQuery: the fields of an options type that a URL can carry become query
// parameters (API conventions, "Verbs on Resources").
func TestOptionsInTheQuery(t *testing.T) {
	for name, test := range map[string]struct {
		options runtime.Object
		without []string
		want    string
	}{
		"list": {
			options: &metav1.ListOptions{},
			want: "labelSelector:string fieldSelector:string watch:boolean allowWatchBookmarks:boolean resourceVersion:string " +
				"resourceVersionMatch:string timeoutSeconds:integer limit:integer continue:string sendInitialEvents:boolean shardSelector:string",
		},
		"list without watching": {
			options: &metav1.ListOptions{},
			without: []string{"watch", "allowWatchBookmarks"},
			want: "labelSelector:string fieldSelector:string resourceVersion:string resourceVersionMatch:string " +
				"timeoutSeconds:integer limit:integer continue:string sendInitialEvents:boolean shardSelector:string",
		},
		"delete, whose preconditions are a struct": {
			options: &metav1.DeleteOptions{},
			want: "gracePeriodSeconds:integer orphanDependents:boolean propagationPolicy:string dryRun:string " +
				"ignoreStoreReadErrorWithClusterBreakingPotential:boolean",
		},
		"log, whose time is a struct": {
			options: &corev1.PodLogOptions{},
			want: "container:string follow:boolean previous:boolean sinceSeconds:integer timestamps:boolean tailLines:integer " +
				"limitBytes:integer insecureSkipTLSVerifyBackend:boolean stream:string",
		},
		"exec, whose command is a list": {
			options: &corev1.PodExecOptions{},
			want:    "stdin:boolean stdout:boolean stderr:boolean tty:boolean container:string command:string",
		},
	} {
		t.Run(name, func(t *testing.T) {
			parameters := optionParameters{}
			for range 2 { // the second time from the cache
				var got []string
				for _, p := range parameters.forType(test.options, test.without...) {
					got = append(got, p.Name()+":"+p.DataType())
					if p.Description() == "" || p.Required() {
						t.Errorf("%s: description %q, required %t", p.Name(), p.Description(), p.Required())
					}
				}
				if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// TestKindsOfAnotherGroup: a document does not list the group-version-kinds that other groups
// register for WatchEvent and DeleteOptions.
func TestKindsOfAnotherGroup(t *testing.T) {
	kinds := func(all ...string) []any {
		var list []any
		for _, one := range all {
			part := strings.Split(one, "/")
			list = append(list, map[string]any{"group": part[0], "version": part[1], "kind": part[2]})
		}
		return list
	}
	for name, test := range map[string]struct{ has, want []any }{
		"own and core": {
			has:  kinds("/v1/WatchEvent", "apps/v1/WatchEvent", "batch/v1/WatchEvent", "apps/v1beta1/WatchEvent"),
			want: kinds("/v1/WatchEvent", "apps/v1/WatchEvent"),
		},
		"delete options":           {has: kinds("/v1/DeleteOptions", "batch/v1/DeleteOptions"), want: kinds("/v1/DeleteOptions")},
		"none of them":             {has: kinds("batch/v1/WatchEvent", "batch/v2/WatchEvent")},
		"registered on purpose":    {has: kinds("autoscaling/v1/Scale", "extensions/v1/Scale"), want: kinds("autoscaling/v1/Scale", "extensions/v1/Scale")},
		"a single one of no group": {has: kinds("batch/v1/WatchEvent"), want: kinds("batch/v1/WatchEvent")},
	} {
		t.Run(name, func(t *testing.T) {
			definition := &spec.Schema{}
			definition.Extensions = spec.Extensions{kindsExtension: test.has}
			document := &spec3.OpenAPI{Components: &spec3.Components{Schemas: map[string]*spec.Schema{"x": definition}}}
			before := len(test.has)
			narrowKinds(document, schema.GroupVersion{Group: "apps", Version: "v1"})
			got, _ := definition.Extensions[kindsExtension].([]any)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if len(test.has) != before || test.has[len(test.has)-1] == nil {
				t.Error("the list, which is shared between documents, was changed")
			}
		})
	}
}

// TestSecurity: without security definitions there is neither a security scheme nor a 401.
func TestSecurity(t *testing.T) {
	served := newTier(t)
	with := decode[spec3.OpenAPI](t, served, "/openapi/v3/version")
	if got := with.Components.SecuritySchemes["BearerToken"]; got == nil || got.Type != "apiKey" || got.In != "header" || got.Name != "authorization" {
		t.Errorf("security schemes: %v", with.Components.SecuritySchemes)
	}
	if with.Paths.Paths["/version/"].Get.Responses.StatusCodeResponses[401] == nil {
		t.Error("no 401")
	}
	served.config.SecurityDefinitions = nil
	without := decode[spec3.OpenAPI](t, tier{Service: rebuilt(served)}, "/openapi/v3/version")
	if len(without.Components.SecuritySchemes) > 0 || without.Paths.Paths["/version/"].Get.Responses.StatusCodeResponses[401] != nil {
		t.Error("security without definitions")
	}
}

// rebuilt returns the same service before anything is built.
func rebuilt(served tier) *Service {
	s := New(served.config)
	s.Describe(served.table, Version(), GroupList(codecs), LegacyVersions(codecs), IssuerConfiguration(), IssuerKeys(), Logs())
	return s
}

// TestExtras: each path is a document of its own in v3, and part of the v2 document.
func TestExtras(t *testing.T) {
	s := tier{Service: rebuilt(newTier(t))}
	v2 := decode[spec.Swagger](t, s, "/openapi/v2")
	for document, want := range map[string]struct{ path, operation string }{
		"version":                          {"/version/", "getCodeVersion"},
		"apis":                             {"/apis/", "getAPIVersions"},
		"apis/autoscaling":                 {"/apis/autoscaling/", "getAutoscalingAPIGroup"},
		"api":                              {"/api/", "getCoreAPIVersions"},
		".well-known/openid-configuration": {"/.well-known/openid-configuration/", "getServiceAccountIssuerOpenIDConfiguration"},
		"openid/v1/jwks":                   {"/openid/v1/jwks/", "getServiceAccountIssuerOpenIDKeyset"},
		"logs":                             {"/logs/", "logFileListHandler"},
	} {
		v3 := decode[spec3.OpenAPI](t, s, "/openapi/v3/"+document)
		if item := v3.Paths.Paths[want.path]; item == nil || item.Get.OperationId != want.operation {
			t.Errorf("v3 document %q has no operation %s at %s", document, want.operation, want.path)
		}
		if item := v2.Paths.Paths[want.path]; item.Get == nil || item.Get.ID != want.operation {
			t.Errorf("v2 has no operation %s at %s", want.operation, want.path)
		}
	}
}

// TestV2AndV3Differ: kube-apiserver treats some things differently in the two versions.
// Defaults are only in v3, because clients of v2 take them for constraints; the kinds of other
// groups are only in v2; and only v3 is HTML-escaped.
func TestV2AndV3Differ(t *testing.T) {
	served := newTier(t)
	v3 := string(body(t, get(served.Documents(), autoscaling)))
	v2 := string(body(t, get(served.Documents(), PathV2)))
	for _, test := range []struct {
		text       string
		inV2, inV3 bool
	}{
		{`"default":`, false, true},
		{`{"group":"batch","kind":"WatchEvent","version":"v1"}`, true, false},
		{`{"group":"autoscaling","kind":"WatchEvent","version":"v1"}`, true, true},
		{`{"group":"","kind":"DeleteOptions","version":"v1"}`, true, true},
		{`'f:<name>'`, true, false},
		{`'f:\u003cname\u003e'`, false, true},
	} {
		if got := strings.Contains(v2, test.text); got != test.inV2 {
			t.Errorf("v2 has %s: %t", test.text, got)
		}
		if got := strings.Contains(v3, test.text); got != test.inV3 {
			t.Errorf("v3 has %s: %t", test.text, got)
		}
	}
}

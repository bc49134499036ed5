package tierclient

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
)

// asked records a request to another tier, and its user.
type asked struct {
	User      string
	Groups    []string
	Method    string
	Path      string
	Verb      string
	Resource  string
	Namespace string
}

func TestConfig(t *testing.T) {
	var got asked
	way := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		user, _ := request.UserFrom(req.Context())
		info, _ := request.RequestInfoFrom(req.Context())
		got = asked{user.GetName(), user.GetGroups(), req.Method, req.URL.Path, info.Verb, info.Resource, info.Namespace}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
	})
	client, err := kubernetes.NewForConfig(Config("extensions", way))
	if err != nil {
		t.Fatal(err)
	}
	groups := []string{"system:authenticated"}
	tests := map[string]struct {
		call func(context.Context) error
		want asked
	}{
		"list": {
			func(ctx context.Context) error {
				_, err := client.RbacV1().Roles("a").List(ctx, metav1.ListOptions{})
				return err
			},
			asked{"system:triune:extensions", groups, "GET", "/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles", "list", "roles", "a"},
		},
		"watch": {
			func(ctx context.Context) error {
				w, err := client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{})
				if err == nil {
					w.Stop()
				}
				return err
			},
			asked{"system:triune:extensions", groups, "GET", "/api/v1/namespaces", "watch", "namespaces", ""},
		},
		"no resource": {
			func(ctx context.Context) error {
				_, err := client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
				return err
			},
			asked{"system:triune:extensions", groups, "GET", "/version", "get", "", ""},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := test.call(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAsIsolatesTheContext: a request made while another one is served ends with it and inherits
// nothing else.
func TestAsIsolatesTheContext(t *testing.T) {
	type key struct{}
	outer, cancel := context.WithCancelCause(context.WithValue(audit.WithAuditContext(t.Context()), key{}, "alice's"))
	defer cancel(nil)
	outer = request.WithRequestInfo(request.WithUser(outer, &user.DefaultInfo{Name: "alice"}), &request.RequestInfo{Path: "/alice"})
	var inner context.Context
	var header http.Header
	handler := As(User("core"), http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { inner, header = req.Context(), req.Header }))
	req := httptest.NewRequestWithContext(outer, http.MethodGet, "/apis", nil)
	req.Header.Set("Accept", "application/json")
	for _, name := range []string{"Audit-ID", "traceparent", "tracestate", "baggage"} {
		req.Header.Set(name, "alice's")
	}
	handler.ServeHTTP(httptest.NewRecorder(), req)

	u, _ := request.UserFrom(inner)
	info, _ := request.RequestInfoFrom(inner)
	if u.GetName() != "system:triune:core" || info.Path != "/apis" {
		t.Errorf("user %v, request info %v", u, info)
	}
	if audit.AuditContextFrom(inner) != nil || inner.Value(key{}) != nil {
		t.Error("values of the request that is being served are inherited")
	}
	if diff := cmp.Diff(http.Header{"Accept": {"application/json"}}, header); diff != "" {
		t.Errorf("header (-want +got)\n%s", diff)
	}
	cancel(nil)
	<-inner.Done()
}

package nexttier

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http/httpguts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// parsed parses these lines of a request as a server does.
func parsed(lines ...string) (*http.Request, error) {
	text := strings.Join(append(lines, "Host: example.com", "", ""), "\r\n")
	return http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
}

// newHop returns a proxy that asserts users and is not running.
func newHop(f *testing.F) *Proxy {
	p, err := New(testConfig("https://127.0.0.1:1"))
	if err != nil {
		f.Fatal(err)
	}
	return p
}

// FuzzTarget forwards a request with an arbitrary target. Both tiers must see the same path, which
// decides who serves the request, and the same query.
func FuzzTarget(f *testing.F) {
	for _, target := range []string{
		"/api/v1/namespaces/a/pods/b", "/apis/a%2Fb/v1/things", "//version", "/api/v1/../v2", "/a/./b//c/", "/%2e%2e/%2E/x", "*",
		"https://other.example/api/v1?watch=1", "http://other.example", "/api?a=b&a=c%26;x#y", "/a%00b%7f", "/é/%C3%A9/%ff", "/a|b[c]^`{}<>\"", "/?", "/%3Fa", "/a%25252Fb", "/a;b=c/d,e", "/a#b%23c",
	} {
		f.Add(target)
	}
	p := newHop(f)
	f.Fuzz(func(t *testing.T, target string) {
		req, err := parsed("GET " + target + " HTTP/1.1")
		if err != nil {
			return
		}
		out, err := p.outgoing(req, alice, kindOf(req))
		if err != nil {
			return
		}
		// The request as an HTTP/2 client sends it and a server parses it.
		sent := out.URL.RequestURI()
		if !strings.HasPrefix(sent, "/") && sent != "*" {
			t.Fatalf("%q is sent as %q, which no server takes", target, sent)
		}
		got, err := url.ParseRequestURI(sent)
		if err != nil {
			t.Fatalf("%q is sent as %q: %v", target, sent, err)
		}
		if got.Path != req.URL.Path {
			t.Errorf("%q has the path %q, and is sent as %q", target, req.URL.Path, sent)
		}
		if got.RawQuery != req.URL.RawQuery {
			t.Errorf("the query %q is sent as %q", req.URL.RawQuery, got.RawQuery)
		}
		if got.EscapedPath() != req.URL.EscapedPath() {
			t.Errorf("%q is escaped as %q, and as %q by the next tier", target, req.URL.EscapedPath(), got.EscapedPath())
		}
	})
}

// impersonated returns the user of a request after upstream's impersonation filter, or the status
// code of its refusal.
func impersonated(req *http.Request) (who *user.DefaultInfo, code int) {
	handler := impersonation.WithImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		u, _ := apirequest.UserFrom(req.Context())
		who = &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra()}
	}), authorizerfactory.NewAlwaysAllowAuthorizer(), statuses)
	ctx := apirequest.WithUser(audit.WithAuditContext(req.Context()), alice)
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{})
	own := req.Clone(ctx)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, own)
	return who, w.Code
}

// statuses holds the codecs of errors.
var statuses = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{})
	return serializer.NewCodecFactory(scheme)
}()

// FuzzImpersonation forwards arbitrary impersonation headers, with other headers about them. The next
// tier must impersonate the same user as this one would, or refuse in the same way.
func FuzzImpersonation(f *testing.F) {
	f.Add("Impersonate-User", "bob", "Impersonate-Group", "developers", "Impersonate-User")
	f.Add("impersonate-user", "system:serviceaccount:a:b", "Impersonate-Uid", "7", "close, Impersonate-Uid")
	f.Add("Impersonate-Extra-Scopes%2Fa", "read", "Impersonate-User", "bob", "keep-alive,impersonate-extra-scopes%2fa")
	f.Add("IMPERSONATE-GROUP", "system:masters", "Impersonate-Extra-", "x", "Upgrade")
	f.Add("Impersonate-Extra-%zz", "x", "Impersonate-User", " a b ", "")
	f.Add("Impersonate-User", "", "X-Remote-User", "admin", "x-remote-user")
	f.Add("Impersonate-User", "a\xffb", "Impersonate-Extra-A", "\tb", ",,")
	p := newHop(f)
	f.Fuzz(func(t *testing.T, one, value, two, other, connection string) {
		req, err := parsed("GET /api/v1/pods HTTP/1.1", one+": "+value, two+": "+other, "Connection: "+connection)
		if err != nil {
			return
		}
		// A server of HTTP/1.1 refuses others, as net/http does.
		for name, values := range req.Header {
			for _, v := range values {
				if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(v) {
					return
				}
			}
		}
		out, err := p.outgoing(req, alice, kindOf(req))
		if err != nil {
			return
		}
		// Names become lower case, and spaces around values may be removed.
		sent := http.Header{}
		for name, values := range out.Header {
			for _, v := range values {
				sent.Add(strings.ToLower(name), strings.Trim(v, " \t"))
			}
		}
		wantUser, wantCode := impersonated(req)
		gotUser, gotCode := impersonated(&http.Request{Method: http.MethodGet, Header: sent, URL: out.URL})
		if diff := cmp.Diff(wantUser, gotUser); diff != "" || gotCode != wantCode {
			t.Errorf("%q: %d here, %d behind (-here +behind):\n%s", req.Header, wantCode, gotCode, diff)
		}
	})
}

package nexttier

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/distrust"
)

// received is a request as seen by a backend.
type received struct {
	user          user.Info
	header        http.Header
	uri, path     string
	query         string
	method, proto string
	body          string
	length        int64
}

func recorder(seen chan<- received) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		u, _ := apirequest.UserFrom(r.Context())
		seen <- received{user: u, header: r.Header, uri: r.RequestURI, path: r.URL.Path, query: r.URL.RawQuery, method: r.Method, proto: r.Proto, body: string(body), length: r.ContentLength}
	}
}

func TestOnlyTheProxyAssertsIdentities(t *testing.T) {
	seen := make(chan received, 1)
	b := startBackend(t, recorder(seen))
	c := testConfig(b.url())
	c.Headers = Headers{User: []string{"X-Remote-User", "X-Also-User"}, Group: []string{"X-Remote-Group", "X-Also-Group"}, ExtraPrefix: []string{"X-Remote-Extra-", "X-Also-Extra-"}}
	f := startFront(t, startProxy(t, c))
	req := f.request(t, http.MethodGet, "/api/v1/pods", nil)
	for name, value := range map[string]string{
		"X-Remote-User": "root", "X-Remote-Group": "system:masters", "X-Remote-Uid": "0", "X-Remote-Extra-Scopes": "all", "X-Remote-Anything": "x",
		"X-Also-User": "root", "X-Also-Group": "system:masters", "X-Also-Extra-Scopes": "all",
		"Authorization": "Bearer secret", "Proxy-Authorization": "Basic secret",
		"Sec-Websocket-Protocol": "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
		"Impersonate-User":       "bob", "Impersonate-Group": "ops", "Audit-Id": "the-one", "Accept": "application/json", "X-Custom": "kept",
		"X-Forwarded-For": "192.0.2.1",
	} {
		req.Header.Set(name, value)
	}
	if a := f.do(t, req); a.code != http.StatusOK {
		t.Fatalf("code %d: %s", a.code, a.body)
	}
	got := <-seen
	if diff := cmp.Diff(user.Info(alice), got.user); diff != "" {
		t.Errorf("user that the next tier believes (-want +got):\n%s", diff)
	}
	for name, values := range got.header {
		if strings.Contains(strings.Join(values, ","), "secret") || strings.Contains(strings.Join(values, ","), "c2VjcmV0") {
			t.Errorf("a credential travelled on in %s", name)
		}
		if strings.HasPrefix(name, "X-Also-") || name == "X-Remote-Anything" || name == "X-Remote-Extra-Scopes" {
			t.Errorf("%s travelled on", name)
		}
	}
	for name, want := range map[string]string{
		"Impersonate-User": "bob", "Impersonate-Group": "ops", "Audit-Id": "the-one", "Accept": "application/json", "X-Custom": "kept",
		"Sec-Websocket-Protocol": "v5.channel.k8s.io",
		"X-Forwarded-For":        "192.0.2.1, 127.0.0.1", "X-Forwarded-Proto": "", "X-Forwarded-Host": "",
	} {
		if got := strings.Join(got.header[name], "|"); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A client must not be able to remove headers on which others rely.
func TestConnectionHeaderCannotRemoveTheIdentity(t *testing.T) {
	p := startProxy(t, testConfig("https://127.0.0.1:1"))
	in := httptest.NewRequest(http.MethodGet, "https://x/", nil)
	in.Header = http.Header{
		"Connection":          {"close, X-Remote-User, x-remote-group,Impersonate-User", "X-Hop"},
		"Impersonate-User":    {"bob"},
		"X-Hop":               {"1"},
		"Keep-Alive":          {"1"},
		"Te":                  {"trailers, deflate"},
		"Transfer-Encoding":   {"chunked"},
		"Upgrade":             {"h2c"},
		"Http2-Settings":      {"x"},
		"Proxy-Authorization": {"x"},
		"x-remote-user ":      {"root"}, // no valid token, so not canonicalized
	}
	out, err := p.outgoing(in, alice, short)
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"Impersonate-User": {"bob"}, "Te": {"trailers"}, "User-Agent": {""},
		"X-Remote-User": {"alice"}, "X-Remote-Uid": {"42"}, "X-Remote-Group": {"dev", "system:authenticated"},
		"X-Remote-Extra-Example.org%2fscopes":     {"a", "b"},
		"X-Remote-Extra-%57eird%25%4bey%20%c3%A9": {"x"},
		"X-Forwarded-For":                         {"192.0.2.1"},
		"X-Remote-Port":                           {"1234"},
		distrust.ChallengeHeader:                  p.challenge,
	}
	got := http.Header{}
	for name, values := range out.Header {
		if strings.HasPrefix(name, "X-Remote-Extra-") {
			// The case of an escape is irrelevant.
			name = strings.ToLower(name)
		}
		got[name] = values
	}
	for name, values := range want {
		if strings.HasPrefix(name, "X-Remote-Extra-") {
			delete(want, name)
			want[strings.ToLower(name)] = values
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestUnrepresentableIdentitiesAreRefused(t *testing.T) {
	called := make(chan received, 1)
	b := startBackend(t, recorder(called))
	p := startProxy(t, testConfig(b.url()))
	for name, u := range map[string]user.Info{
		"no name":       &user.DefaultInfo{},
		"line in name":  &user.DefaultInfo{Name: "a\nX-Remote-Group: system:masters"},
		"line in group": &user.DefaultInfo{Name: "a", Groups: []string{"b\r\n"}},
		"line in extra": &user.DefaultInfo{Name: "a", Extra: map[string][]string{"k": {"\x00"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			req := httptest.NewRequest(http.MethodGet, "/api", nil)
			p.ServeHTTP(w, req.WithContext(apirequest.WithUser(req.Context(), u)))
			if w.Code != http.StatusInternalServerError || len(called) > 0 {
				t.Errorf("code %d, %d requests sent", w.Code, len(called))
			}
		})
	}
	t.Run("no user", func(t *testing.T) {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api", nil))
		if w.Code != http.StatusInternalServerError || len(called) > 0 {
			t.Errorf("code %d, %d requests sent", w.Code, len(called))
		}
	})
}

func TestPathAndQueryArePreserved(t *testing.T) {
	seen := make(chan received, 1)
	b := startBackend(t, recorder(seen))
	f := startFront(t, startProxy(t, testConfig(b.url())))
	for _, uri := range []string{
		"/api/v1/namespaces/a%2Fb/pods/c%2fd",
		"/api/v1/namespaces/a%20b/pods/%7Bx%7D",
		"/apis/x/v1/y/system:node:z?a=b;c=d&e&f=%zz&g=1+2%202",
		"/a//b/./c/../d",
		"/",
		"/x?",
		"/api/v1/pods?labelSelector=a%3Db%2Cc%21%3Dd&watch=false",
		"/%E4%B8%AD/*/~!$&'()@",
	} {
		req := f.request(t, http.MethodGet, "/", nil)
		// Send it unchanged, without the client's cleaning.
		req.URL.Opaque = uri
		if a := f.do(t, req); a.code != http.StatusOK {
			t.Fatalf("%s: code %d: %s", uri, a.code, a.body)
		}
		if got := <-seen; got.uri != uri {
			t.Errorf("sent %s, arrived %s", uri, got.uri)
		}
	}
}

func TestMethodsAndBodiesAreForwarded(t *testing.T) {
	seen := make(chan received, 1)
	b := startBackend(t, recorder(seen))
	f := startFront(t, startProxy(t, testConfig(b.url())))
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"} {
		for _, size := range []int{0, 1, 5000, 1 << 20} {
			for _, known := range []bool{true, false} {
				text := strings.Repeat("x", size)
				var body io.Reader
				if size > 0 {
					body = strings.NewReader(text)
					if !known {
						body = io.MultiReader(body)
					}
				}
				if a := f.do(t, f.request(t, method, "/api/v1/pods", body)); a.code != http.StatusOK {
					t.Fatalf("%s %d: code %d: %s", method, size, a.code, a.body)
				}
				got := <-seen
				wantLength := int64(size)
				if !known && size > 0 {
					wantLength = -1
				}
				if got.method != method || got.body != text || got.length != wantLength || got.proto != "HTTP/2.0" {
					t.Errorf("%s %d: arrived as %s with %d bytes, length %d, %s", method, size, got.method, len(got.body), got.length, got.proto)
				}
			}
		}
	}
}

func TestKindOfRequest(t *testing.T) {
	info := func(verb, subresource string) *apirequest.RequestInfo {
		return &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, Subresource: subresource}
	}
	cases := []struct {
		uri    string
		info   *apirequest.RequestInfo
		header http.Header
		want   kind
	}{
		{uri: "/api/v1/pods", want: short},
		{uri: "/api/v1/pods", info: info("list", ""), want: short},
		{uri: "/api/v1/pods?watch=1", info: info("watch", ""), want: stream},
		{uri: "/api/v1/pods?watch=1", want: stream},
		{uri: "/api/v1/pods?watch", want: stream},
		{uri: "/api/v1/pods?watch=false", want: short},
		{uri: "/api/v1/pods?watch=0", want: short},
		{uri: "/api/v1/pods?labelSelector=watch", want: short},
		{uri: "/api/v1/watch/pods", want: stream},
		{uri: "/api/v1/watch/pods", info: info("watch", ""), want: stream},
		{uri: "/api/v1/namespaces/n/pods/p/log", info: info("get", "log"), want: short},
		{uri: "/api/v1/namespaces/n/pods/p/log?follow=true", info: info("get", "log"), want: stream},
		{uri: "/api/v1/namespaces/n/pods/p/proxy/x", info: info("get", "proxy"), want: stream},
		{uri: "/api/v1/namespaces/n/pods/p/exec", info: info("create", "exec"), header: http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"SPDY/3.1"}}, want: upgrade},
		{uri: "/api/v1/pods?watch=1", header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, want: upgrade},
		{uri: "/api/v1/pods", header: http.Header{"Upgrade": {"websocket"}}, want: short},
	}
	for _, c := range cases {
		req := httptest.NewRequest(http.MethodGet, c.uri, nil)
		req.Header = c.header
		if c.info != nil {
			req = req.WithContext(apirequest.WithRequestInfo(req.Context(), c.info))
		}
		if got := kindOf(req); got != c.want {
			t.Errorf("%s %v: %v, want %v", c.uri, c.header, got, c.want)
		}
	}
}

func TestOneAuditIDForOneRequest(t *testing.T) {
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
		w.Header().Set("Cache-Control", "no-cache, private")
		w.Header().Add("Warning", `299 - "from core"`)
		fmt.Fprint(w, "ok")
	})
	p := startProxy(t, testConfig(b.url()))
	f := startFront(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Already set by the handler chain.
		w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
		w.Header().Set("Cache-Control", "no-cache, private")
		w.Header().Add("Warning", `299 - "from here"`)
		p.ServeHTTP(w, r)
	}))
	req := f.request(t, http.MethodGet, "/api", nil)
	req.Header.Set("Audit-Id", "the-one")
	a := f.do(t, req)
	want := http.Header{"Audit-Id": {"the-one"}, "Cache-Control": {"no-cache, private"}, "Warning": {`299 - "from here"`, `299 - "from core"`}}
	got := http.Header{"Audit-Id": a.header["Audit-Id"], "Cache-Control": a.header["Cache-Control"], "Warning": a.header["Warning"]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestConfigReportsEveryProblem(t *testing.T) {
	_, err := New(Config{Targets: []string{"http://x", "https://", "https://x/path", "https://u@x", ":"}, MaxInFlight: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"needs a name", "CA file", "certificate and key", "negative", `"http://x": only https`, `"https://" has no host`, `"https://x/path" must be`, `"https://u@x" must be`, `":"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	c := testConfig("https://127.0.0.1:1")
	c.CertFile = otherPKI.FrontProxyClient.CertFile
	if _, err := New(c); err == nil {
		t.Error("a certificate with another key was accepted")
	}
}

package identity

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestAuthenticatingProxy checks a proxy that asserts its clients with configured header
// names.
func TestAuthenticatingProxy(t *testing.T) {
	portal := load(t, site.pki.Clients["portal"])
	as := func(headers map[string]string) credential { return credential{certificate: portal, headers: headers} }
	got := expectUser(t, as(map[string]string{
		"X-Portal-User": "carol", "X-Portal-Uid": "7", "X-Portal-Group": "a|b", "X-Portal-Extra-Scopes": "view|edit", "X-Portal-Extra-Example.com%2fFloor": "3",
	}), "carol")
	want := authenticationv1.UserInfo{
		Username: "carol", UID: "7", Groups: []string{"a", "b", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"scopes": {"view", "edit"}, "example.com/floor": {"3"}},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	expectUser(t, as(map[string]string{"X-Remote-User": "carol"}), "carol")
	got = expectUser(t, as(map[string]string{"X-Portal-User": "carol", "X-Remote-User": "mallory", "X-Portal-Group": "a", "X-Remote-Group": "b"}), "mallory")
	if want := []string{"b", "a", "system:authenticated"}; !slices.Equal(got.Groups, want) {
		t.Errorf("groups %q, want %q", got.Groups, want)
	}

	for name, c := range map[string]credential{
		"a proxy that is not allowed":        {certificate: load(t, site.pki.Clients["gate"]), headers: map[string]string{"X-Portal-User": "carol"}},
		"a certificate of another authority": {certificate: load(t, site.pki.Clients["mallory"]), headers: map[string]string{"X-Portal-User": "carol"}},
		"no certificate":                     {headers: map[string]string{"X-Portal-User": "carol"}},
		"no user":                            as(map[string]string{"X-Portal-Group": "system:masters"}),
		"an empty user":                      as(map[string]string{"X-Portal-User": ""}),
	} {
		t.Run(name, func(t *testing.T) { expectUser(t, c, "") })
	}
	t.Run("nobody", func(t *testing.T) {
		expectAnonymousRefused(t, as(map[string]string{"X-Portal-User": "system:anonymous", "X-Portal-Group": "system:unauthenticated"}))
	})
	t.Run("headers of clients", func(t *testing.T) {
		got := expectUser(t, credential{
			token:   "hook-judged",
			headers: map[string]string{"X-Portal-User": "admin", "X-Portal-Group": "system:masters", "X-Remote-Group": "system:masters", "X-Portal-Extra-A": "b"},
		}, "judged:carol")
		if slices.Contains(got.Groups, "system:masters") {
			t.Errorf("groups %q", got.Groups)
		}
		admin := expectUser(t, credential{certificate: load(t, site.pki.Admin), headers: map[string]string{"X-Portal-User": "mallory"}}, "kubernetes-admin")
		if len(admin.Extra["a"]) > 0 {
			t.Errorf("extra %v", admin.Extra)
		}
	})
	t.Run("through a proxy", func(t *testing.T) { throughProxy(t) })
}

// throughProxy sends requests through a proxy that authenticates its users by password.
func throughProxy(t *testing.T) {
	var answers []string
	for _, s := range servers() {
		to, err := url.Parse(s.cluster.URL)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httptest.NewServer(&httputil.ReverseProxy{
			Transport: s.client(load(t, site.pki.Clients["portal"])).Transport,
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				for name := range r.Out.Header {
					if strings.HasPrefix(name, "X-Portal-") || strings.HasPrefix(name, "X-Remote-") {
						r.Out.Header.Del(name)
					}
				}
				if user, password, ok := r.In.BasicAuth(); ok && password == "secret of "+user {
					r.Out.Header.Set("X-Portal-User", user)
				}
				r.Out.Header.Del("Authorization")
			},
		})
		t.Cleanup(proxy.Close)
		for _, password := range []string{"secret of erin", "wrong"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, proxy.URL+"/api/v1/namespaces", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.SetBasicAuth("erin", password)
			req.Header.Set("X-Portal-User", "kubernetes-admin")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, resp.Status+" "+string(body))
		}
	}
	if !slices.Equal(answers[:2], answers[2:]) || !strings.Contains(answers[0], `User \"erin\" cannot list`) || !strings.HasPrefix(answers[1], "401") {
		t.Errorf("got %q", answers)
	}
}

package authn

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"triune.dev/shared/process/pki"
)

// TestWithoutAnonymous: no request is anonymous, even if a front proxy says so, if that is
// disabled or the path is not allowed.
func TestWithoutAnonymous(t *testing.T) {
	file := func(path string) func(*Options) {
		return func(o *Options) {
			o.ConfigFile = filepath.Join(t.TempDir(), "authentication.yaml")
			content := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n" +
				"anonymous: {enabled: true, conditions: [{path: " + path + "}]}\n"
			if err := os.WriteFile(o.ConfigFile, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	asserted := http.Header{"X-Remote-User": {"system:anonymous"}, "X-Remote-Group": {"system:unauthenticated"}}
	tests := map[string]struct {
		change func(*Options)
		want   int
	}{
		"on":           {nil, http.StatusOK},
		"off":          {func(o *Options) { o.Anonymous = false }, http.StatusUnauthorized},
		"this path":    {file("/apis/example.com/v1/things"), http.StatusOK},
		"another path": {file("/livez"), http.StatusUnauthorized},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.change)
			if got := f.ask(t, pki.Pair{}, nil); got.Status != test.want {
				t.Errorf("without a credential: %+v, want %d", got, test.want)
			}
			if got := f.ask(t, f.pki.FrontProxyClient, asserted); got.Status != test.want {
				t.Errorf("asserted by a front proxy: %+v, want %d", got, test.want)
			}
			if got := f.ask(t, f.pki.Clients["alice"], nil); got.Status != http.StatusOK {
				t.Errorf("alice: %+v", got)
			}
		})
	}
}

func TestAnonymousConditions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	content := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous:\n  enabled: true\n  conditions:\n  - path: /livez\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(o *Options) { o.ConfigFile = file })
	for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusUnauthorized} {
		recorder := httptest.NewRecorder()
		f.server.Config.Handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		if recorder.Code != want {
			t.Errorf("%s: got %d, want %d", path, recorder.Code, want)
		}
	}
}

// TestAnonymousTokenUnderReview: a TokenReview authenticates a request without a path, so
// that no condition on paths allows it.
func TestAnonymousTokenUnderReview(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	content := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous:\n  enabled: true\n  conditions:\n  - path: /livez\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	nobody := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous}}, true, nil
	})
	reviewer, err := RefuseAnonymous(nobody, file, true)
	if err != nil {
		t.Fatal(err)
	}
	if response, ok, err := reviewer.AuthenticateRequest(&http.Request{Header: http.Header{}}); ok || err == nil {
		t.Errorf("got %+v, %v, %v", response, ok, err)
	}
}

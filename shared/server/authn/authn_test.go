package authn

import (
	"bytes"
	"context"

	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	authenticationapi "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes/scheme"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/server/authn/outage"
	"triune.dev/shared/transport/loopback"
)

const staticToken, serviceAccountToken = "static-token", "service-account-token"

// who is what a server has made of a request's sender.
type who struct {
	Status int
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
	// Headers are the identity headers that a handler still sees.
	Headers http.Header
}

// fixture is a TLS server behind the authenticator of the options.
type fixture struct {
	pki *pki.PKI

	server  *httptest.Server
	reviews atomic.Int32
	// trusted is the file of the client CAs, and reload reads it again.
	trusted string
	reload  func(context.Context) error
	// down makes core answer nothing but 503.
	down atomic.Int32 // status
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	dir := t.TempDir()
	made, err := pki.Ensure(dir, pki.Options{Clients: []pki.Client{
		{Name: "alice", CommonName: "alice", Organizations: []string{"developers"}},
		{Name: "wrong-proxy", CommonName: "mallory", Authority: pki.FrontProxyCA},
		{Name: "stranger", CommonName: "stranger", Authority: pki.EtcdCA},
		{Name: "named-proxy", CommonName: pki.FrontProxyClientName},
	}})
	if err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(staticToken+",bob,bob-uid,\"auditors,operators\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := NewOptions()
	trusted, err := os.ReadFile(made.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	o.ClientCert.ClientCA = filepath.Join(dir, "clients.pem")
	if err := os.WriteFile(o.ClientCert.ClientCA, trusted, 0o600); err != nil {
		t.Fatal(err)
	}
	o.RequestHeader.ClientCAFile = made.FrontProxyCA.CertFile
	o.RequestHeader.AllowedNames = []string{pki.FrontProxyClientName}
	o.RequestHeader.UsernameHeaders = []string{"X-Remote-User", "X-Our-User"}
	o.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	o.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	o.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	o.TokenFile = tokens
	if change != nil {
		change(o)
	}
	if problems := o.Validate(); len(problems) > 0 {
		t.Fatal(problems)
	}

	f := &fixture{pki: made, trusted: o.ClientCert.ClientCA}
	core := http.HandlerFunc(f.review)
	config := loopback.Config(func() http.Handler { return core }, "")
	var info genericapiserver.AuthenticationInfo
	var serving genericapiserver.SecureServingInfo
	if err := o.ApplyTo(&info, &serving, config); err != nil {
		t.Fatal(err)
	}
	f.reload = serving.ClientCA.(dynamiccertificates.ControllerRunner).RunOnce
	options, ok := serving.ClientCA.VerifyOptions()
	if !ok || options.Roots == nil {
		t.Fatal("the server would not ask for client certificates")
	}

	handler := genericapifilters.WithAuthentication(http.HandlerFunc(tell), info.Authenticator,
		outage.Refuse(scheme.Codecs, genericapifilters.Unauthorized(scheme.Codecs)), info.APIAudiences, info.RequestHeaderConfig)
	tracked := handler
	handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		tracked.ServeHTTP(w, req.WithContext(outage.Track(req.Context())))
	})
	handler = genericapifilters.WithRequestInfo(handler, &request.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	})
	f.server = httptest.NewUnstartedServer(handler)
	certificate, err := made.Serving["core"].Load()
	if err != nil {
		t.Fatal(err)
	}
	// As in dynamiccertificates: ask for a certificate, let the authenticators
	// verify it.
	f.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}
	f.server.EnableHTTP2 = true
	f.server.StartTLS()
	t.Cleanup(f.server.Close)
	return f
}

// review is core's side of a TokenReview.
func (f *fixture) review(w http.ResponseWriter, req *http.Request) {
	f.reviews.Add(1)
	if code := f.down.Load(); code != 0 {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "down", int(code))
		return
	}
	var review authenticationapi.TokenReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if review.Spec.Token == serviceAccountToken {
		review.Status = authenticationapi.TokenReviewStatus{Authenticated: true, User: authenticationapi.UserInfo{
			Username: "system:serviceaccount:default:robot", UID: "robot-uid", Groups: []string{"system:serviceaccounts"},
		}}
	} else {
		review.Status.Error = "invalid bearer token"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

// tell answers who the request was authenticated as.
func tell(w http.ResponseWriter, req *http.Request) {
	user, _ := request.UserFrom(req.Context())
	told := who{Name: user.GetName(), UID: user.GetUID(), Groups: user.GetGroups(), Extra: user.GetExtra()}
	for name, values := range req.Header {
		if strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "X-Our-") || name == "Authorization" {
			if told.Headers == nil {
				told.Headers = http.Header{}
			}
			told.Headers[name] = values
		}
	}
	_ = json.NewEncoder(w).Encode(told)
}

func (f *fixture) ask(t *testing.T, client pki.Pair, header http.Header) who {
	t.Helper()
	config := &tls.Config{}
	var err error
	if config.RootCAs, err = pki.LoadPool(f.pki.ClusterCA.CertFile); err != nil {
		t.Fatal(err)
	}
	if client.CertFile != "" {
		certificate, err := client.Load()
		if err != nil {
			t.Fatal(err)
		}
		// The server names the CAs it accepts in its request, and Go's client would
		// hold back a certificate of another one.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.server.URL+"/apis/example.com/v1/things", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	told := who{}
	if res.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body.Bytes(), &told); err != nil {
			t.Fatalf("%v: %s", err, body.String())
		}
	}
	told.Status = res.StatusCode
	// Says which certificate it was; its value changes with each run.
	delete(told.Extra, "authentication.kubernetes.io/credential-id")
	if len(told.Extra) == 0 {
		told.Extra = nil
	}
	return told
}

func TestWhoIsAsking(t *testing.T) {
	f := newFixture(t, nil)
	none := pki.Pair{}
	asserted := http.Header{
		"X-Remote-User": {"carol"}, "X-Remote-Uid": {"carol-uid"},
		"X-Remote-Group": {"g1", "g2"}, "X-Remote-Extra-Scopes%2fx": {"read"},
	}
	anonymous := who{Status: 200, Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}
	refused := who{Status: 401}
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	with := func(headers ...http.Header) http.Header {
		merged := http.Header{}
		for _, h := range headers {
			for name, values := range h {
				merged[name] = values
			}
		}
		return merged
	}
	alice := who{Status: 200, Name: "alice", Groups: []string{"developers", "system:authenticated"}}
	carol := who{
		Status: 200, Name: "carol", UID: "carol-uid", Groups: []string{"g1", "g2", "system:authenticated"},
		Extra: map[string][]string{"scopes/x": {"read"}},
	}
	bob := who{Status: 200, Name: "bob", UID: "bob-uid", Groups: []string{"auditors", "operators", "system:authenticated"}}
	robot := who{Status: 200, Name: "system:serviceaccount:default:robot", UID: "robot-uid", Groups: []string{"system:serviceaccounts", "system:authenticated"}}

	tests := map[string]struct {
		client pki.Pair
		header http.Header
		want   who
	}{
		"nobody is anonymous":                      {none, nil, anonymous},
		"client certificate":                       {f.pki.Clients["alice"], nil, alice},
		"client certificate of an unknown CA":      {f.pki.Clients["stranger"], nil, refused},
		"front proxy with a user":                  {f.pki.FrontProxyClient, asserted, carol},
		"front proxy with a configured header":     {f.pki.FrontProxyClient, http.Header{"X-Our-User": {"dave"}}, who{Status: 200, Name: "dave", Groups: []string{"system:authenticated"}}},
		"front proxy without a user":               {f.pki.FrontProxyClient, nil, refused},
		"front proxy with an empty user":           {f.pki.FrontProxyClient, http.Header{"X-Remote-User": {""}}, refused},
		"front proxy with groups but no user":      {f.pki.FrontProxyClient, http.Header{"X-Remote-Group": {"system:masters"}}, refused},
		"front proxy without a user, with a token": {f.pki.FrontProxyClient, bearer(staticToken), refused},
		"front-proxy CA but a wrong name":          {f.pki.Clients["wrong-proxy"], asserted, refused},
		"front-proxy CA, wrong name, no headers":   {f.pki.Clients["wrong-proxy"], nil, refused},
		"client CA with the front proxy's name":    {f.pki.Clients["named-proxy"], asserted, who{Status: 200, Name: pki.FrontProxyClientName, Groups: []string{"system:authenticated"}}},
		"forged headers without a certificate":     {none, asserted, anonymous},
		"forged headers with a client certificate": {f.pki.Clients["alice"], asserted, alice},
		"forged headers with a token":              {none, with(asserted, bearer(staticToken)), bob},
		"static token":                             {none, bearer(staticToken), bob},
		"token that core knows":                    {none, bearer(serviceAccountToken), robot},
		"token that nobody knows":                  {none, bearer("nonsense"), refused},
		"certificate before token":                 {f.pki.Clients["alice"], bearer(staticToken), alice},
		"bad certificate, good token":              {f.pki.Clients["stranger"], bearer(staticToken), bob},
		"malformed Authorization is no credential": {none, http.Header{"Authorization": {"Basic eDp5"}}, anonymous},
		"other case of a header":                   {f.pki.FrontProxyClient, http.Header{"X-Remote-User": {"erin"}, "X-Remote-Extra-A": {"1"}}, who{Status: 200, Name: "erin", Groups: []string{"system:authenticated"}, Extra: map[string][]string{"a": {"1"}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, f.ask(t, test.client, test.header)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestWithoutAnonymous: nobody is anonymous, whoever says so, where that is turned off or
// the path is another one.
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

// TestReviewsAreKept shows the cache at work: a good token is reviewed once and
// survives core for that time, a bad one is asked about again soon enough.
func TestReviewsAreKept(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.ReviewCacheTTL = time.Hour })
	header := http.Header{"Authorization": {"Bearer " + serviceAccountToken}}
	for range 3 {
		if got := f.ask(t, pki.Pair{}, header); got.Status != http.StatusOK {
			t.Fatalf("got %+v, want 200", got)
		}
	}
	if got := f.reviews.Load(); got != 1 {
		t.Errorf("core was asked %d times, want once", got)
	}
	f.down.Store(http.StatusServiceUnavailable)
	if got := f.ask(t, pki.Pair{}, header); got.Status != http.StatusOK {
		t.Errorf("with core down: got %+v, want the answer that was kept", got)
	}
	unknown := http.Header{"Authorization": {"Bearer another"}}
	begin := time.Now()
	if got := f.ask(t, pki.Pair{}, unknown); got.Status != http.StatusServiceUnavailable {
		t.Errorf("an unknown token with core down: got %+v, want 503", got)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the answer took %s: Retry-After of core must not be waited for", took)
	}
	f.down.Store(0)
	f.reviews.Store(0)
	if got := f.ask(t, pki.Pair{}, unknown); got.Status != http.StatusUnauthorized || f.reviews.Load() == 0 {
		t.Errorf("got %+v after %d reviews, want 401 after another review: an outage is no answer", got, f.reviews.Load())
	}
}

// TestWebSocketToken: browsers send the token among the subprotocols.
func TestWebSocketToken(t *testing.T) {
	f := newFixture(t, nil)
	encoded := base64.RawURLEncoding.EncodeToString([]byte(staticToken))
	req := httptest.NewRequest(http.MethodGet, "/apis/example.com/v1/things", nil)
	req.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
		"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io." + encoded + ", v5.channel.k8s.io"},
	}
	recorder := httptest.NewRecorder()
	f.server.Config.Handler.ServeHTTP(recorder, req)
	var told who
	if err := json.Unmarshal(recorder.Body.Bytes(), &told); err != nil || told.Name != "bob" {
		t.Errorf("got %d %s (%v), want bob", recorder.Code, recorder.Body, err)
	}
	if got := req.Header.Get("Sec-Websocket-Protocol"); strings.Contains(got, encoded) {
		t.Errorf("the token travels on in %q", got)
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

// TestAnonymousTokenUnderReview: a token is reviewed with a request that has no path, so a
// condition on paths lets nobody in by it.
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

// TestCAReload replaces the client CA on disk, as a rotation does.
func TestCAReload(t *testing.T) {
	f := newFixture(t, nil)
	other, err := pki.Ensure(t.TempDir(), pki.Options{Clients: []pki.Client{{Name: "alice", CommonName: "alice"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.ask(t, other.Clients["alice"], nil); got.Status != http.StatusUnauthorized {
		t.Fatalf("before: got %+v, want 401", got)
	}
	bundle, err := os.ReadFile(other.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.trusted, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	// What secure serving does all the time while it runs.
	if err := f.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.ask(t, other.Clients["alice"], nil); got.Status != http.StatusOK {
		t.Errorf("after: got %+v, want 200", got)
	}
}

func TestValidate(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	shortTokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(shortTokens, []byte("token,user\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknownField := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(unknownField, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymus: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		want []string // one for each problem
	}{
		"the defaults": {},
		"missing files": {
			args: []string{"--client-ca-file=/no/ca", "--requestheader-client-ca-file=/no/proxy-ca", "--requestheader-username-headers=X-Remote-User", "--token-auth-file=/no/tokens"},
			want: []string{"--client-ca-file=/no/ca", "--requestheader-client-ca-file=/no/proxy-ca", "--token-auth-file=/no/tokens"},
		},
		"one CA for clients and proxies": {
			args: []string{"--client-ca-file=" + made.ClusterCA.CertFile, "--requestheader-client-ca-file=" + made.ClusterCA.CertFile, "--requestheader-username-headers=X-Remote-User"},
			want: []string{"--requestheader-allowed-names"},
		},
		"a front proxy that can name nobody": {
			args: []string{"--requestheader-client-ca-file=" + made.FrontProxyCA.CertFile},
			want: []string{"--requestheader-username-headers"},
		},
		"a token file without a UID": {args: []string{"--token-auth-file=" + shortTokens}, want: []string{"--token-auth-file=" + shortTokens}},
		"an unknown field":           {args: []string{"--authentication-config=" + unknownField}, want: []string{"--authentication-config=" + unknownField}},
		"durations": {
			args: []string{"--authentication-token-webhook-cache-ttl=-1s", "--authentication-token-webhook-timeout=0s", "--authentication-max-staleness=-1s"},
			want: []string{"--authentication-token-webhook-cache-ttl=-1s", "--authentication-token-webhook-timeout=0s", "--authentication-max-staleness=-1s"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
			o.AddFlags(flags)
			if err := flags.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			problems := o.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("got %v, want %d problems", problems, len(test.want))
			}
			for i, problem := range problems {
				if !strings.Contains(problem.Error(), test.want[i]) {
					t.Errorf("%q does not name %s", problem, test.want[i])
				}
			}
		})
	}
}

func TestAnonymousFlagExcludesConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := NewOptions()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse([]string{"--anonymous-auth=true", "--authentication-config=" + file}); err != nil {
		t.Fatal(err)
	}
	if problems := o.Validate(); len(problems) != 1 || !strings.Contains(problems[0].Error(), "--anonymous-auth") {
		t.Errorf("got %v, want one problem that names --anonymous-auth", problems)
	}
}

// TestBareFrontProxyWithoutNames: where no names are configured every
// certificate of the front-proxy CA is a front proxy's.
func TestBareFrontProxyWithoutNames(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.RequestHeader.AllowedNames = nil })
	for _, header := range []http.Header{nil, {"Authorization": {"Bearer " + staticToken}}} {
		if got := f.ask(t, f.pki.Clients["wrong-proxy"], header); got.Status != http.StatusUnauthorized {
			t.Errorf("with %v: got %+v, want 401", header, got)
		}
	}
}

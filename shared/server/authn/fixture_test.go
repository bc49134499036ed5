package authn

import (
	"bytes"
	"context"

	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	authenticationapi "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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

// identity is the result of a request's authentication.
type identity struct {
	Status int
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
	// Headers are the identity headers that the handler sees.
	Headers http.Header
}

// fixture is a TLS server behind the authenticator of the options.
type fixture struct {
	pki *pki.PKI

	server  *httptest.Server
	reviews atomic.Int32
	// clientCAFile is the file of the client CAs, and reload reloads it.
	clientCAFile string
	reload       func(context.Context) error
	// down is the status that core answers with, if it is not zero.
	down atomic.Int32
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
	bundle, err := os.ReadFile(made.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	o.ClientCert.ClientCA = filepath.Join(dir, "clients.pem")
	if err := os.WriteFile(o.ClientCert.ClientCA, bundle, 0o600); err != nil {
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

	f := &fixture{pki: made, clientCAFile: o.ClientCert.ClientCA}
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

	handler := genericapifilters.WithAuthentication(http.HandlerFunc(answerIdentity), info.Authenticator,
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
	// As in dynamiccertificates, the authenticators verify client certificates.
	f.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}
	f.server.EnableHTTP2 = true
	f.server.StartTLS()
	t.Cleanup(f.server.Close)
	return f
}

// review answers a TokenReview as core.
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

// answerIdentity answers with the identity of the request.
func answerIdentity(w http.ResponseWriter, req *http.Request) {
	user, _ := request.UserFrom(req.Context())
	got := identity{Name: user.GetName(), UID: user.GetUID(), Groups: user.GetGroups(), Extra: user.GetExtra()}
	for name, values := range req.Header {
		if strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "X-Our-") || name == "Authorization" {
			if got.Headers == nil {
				got.Headers = http.Header{}
			}
			got.Headers[name] = values
		}
	}
	_ = json.NewEncoder(w).Encode(got)
}

func (f *fixture) ask(t *testing.T, client pki.Pair, header http.Header) identity {
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
		// Go's client would withhold a certificate of a CA that the server does not name.
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
	got := identity{}
	if res.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body.Bytes(), &got); err != nil {
			t.Fatalf("%v: %s", err, body.String())
		}
	}
	got.Status = res.StatusCode
	// The fingerprint of the certificate differs in each run.
	delete(got.Extra, "authentication.kubernetes.io/credential-id")
	if len(got.Extra) == 0 {
		got.Extra = nil
	}
	return got
}

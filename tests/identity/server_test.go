package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
)

// patience is far more than any condition takes, for busy machines.
const patience = 2 * time.Minute

// server is one of the two servers that are compared.
type server struct {
	cluster *cluster.Cluster
	// admin belongs to the group system:masters.
	admin *kubernetes.Clientset
	roots *x509.CertPool
	// base has no credential.
	base *http.Client
}

func newServer(c *cluster.Cluster) (*server, error) {
	config, err := c.REST()
	if err != nil {
		return nil, err
	}
	s := &server{cluster: c}
	if s.admin, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if s.roots, err = pki.LoadPool(c.PKI.ClusterCA.CertFile); err != nil {
		return nil, err
	}
	s.base = s.client(nil)
	return s, nil
}

// client returns a client that presents a certificate even if the server does not ask for
// its CA.
func (s *server) client(certificate *tls.Certificate) *http.Client {
	config := &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableKeepAlives: certificate != nil}}
}

// credential is the credential of a request.
type credential struct {
	token       string
	certificate *tls.Certificate
	headers     map[string]string
}

// answer has the parts of an answer that are compared.
type answer struct {
	Code            int
	Reason, Message string
	// User is set for answers to a SelfSubjectReview.
	User authenticationv1.UserInfo
}

// send sends a request with a JSON body.
func (s *server) send(ctx context.Context, c credential, method, path, body string) (answer, error) {
	return s.sendTo(ctx, s.cluster.URL, c, method, path, body)
}

// sendTo sends a request to one replica.
func (s *server) sendTo(ctx context.Context, url string, c credential, method, path, body string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for name, value := range c.headers {
		for v := range strings.SplitSeq(value, "|") {
			req.Header.Add(name, v)
		}
	}
	client := s.base
	if c.certificate != nil {
		client = s.client(c.certificate)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{Code: resp.StatusCode}
	var said struct {
		Kind, Reason, Message string
		Status                json.RawMessage
	}
	if err := json.Unmarshal(content, &said); err != nil {
		a.Message = string(content)
		return a, nil
	}
	switch said.Kind {
	case "Status":
		a.Reason, a.Message = said.Reason, said.Message
	case "SelfSubjectReview":
		var status authenticationv1.SelfSubjectReviewStatus
		if err := json.Unmarshal(said.Status, &status); err != nil {
			return a, err
		}
		a.User = status.UserInfo
	}
	return a, nil
}

// elsewhere are paths of other tiers than core.
var elsewhere = []string{
	"/apis/apiregistration.k8s.io/v1/apiservices/none-such",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/none-such",
}

// sanitized replaces characters of names as Kubernetes does in messages.
var sanitized = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// identify returns the user of a credential, and an error if the tiers of the server
// disagree.
func (s *server) identify(ctx context.Context, c credential) (answer, error) {
	a, err := s.send(ctx, c, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", "{}")
	if err != nil {
		return a, err
	}
	for _, path := range elsewhere {
		other, err := s.send(ctx, c, http.MethodGet, path, "")
		switch {
		case err != nil:
			return a, err
		case a.Code == http.StatusCreated && other.Code == http.StatusNotFound:
		case a.Code == http.StatusCreated && other.Code == http.StatusForbidden && strings.Contains(other.Message, "User "+sanitized.Replace(strconv.Quote(a.User.Username))+" cannot"):
		case a.Code == other.Code && a.Message == other.Message:
		default:
			return a, fmt.Errorf("%s: %+v, but %s: %+v", s.cluster.Config.Topology, a, path, other)
		}
	}
	return a, nil
}

// expectUser fails unless all tiers of both servers accept a credential as that of the
// user, or refuse it with 401 if user is "". It returns the user.
func expectUser(t *testing.T, c credential, user string) authenticationv1.UserInfo {
	t.Helper()
	var answers []answer
	for _, s := range servers() {
		a, err := s.identify(t.Context(), c)
		if err != nil {
			t.Error(err)
		}
		answers = append(answers, a)
		switch {
		case user == "" && (a.Code != http.StatusUnauthorized || a.Message != "Unauthorized" || a.Reason != "Unauthorized"):
			t.Errorf("%s: %+v, want 401", s.cluster.Config.Topology, a)
		case user != "" && (a.Code != http.StatusCreated || a.User.Username != user):
			t.Errorf("%s: %+v, want the user %q", s.cluster.Config.Topology, a, user)
		}
	}
	if diff := gocmp.Diff(answers[0], answers[1]); diff != "" {
		t.Errorf("(-kube-apiserver +tested):\n%s", diff)
	}
	return answers[1].User
}

// expectAnonymousRefused fails unless a credential that names system:anonymous is refused.
// kube-apiserver accepts it; see docs/divergences.md.
func expectAnonymousRefused(t *testing.T, c credential) {
	t.Helper()
	for _, path := range append([]string{"/api/v1/namespaces"}, elsewhere...) {
		for _, s := range servers() {
			want := http.StatusUnauthorized
			if s.cluster.Config.Topology == cluster.KubeAPIServer {
				want = http.StatusForbidden
			}
			if a, err := s.send(t.Context(), c, http.MethodGet, path, ""); err != nil || a.Code != want {
				t.Errorf("%s: %s: %+v, %v, want %d", s.cluster.Config.Topology, path, a, err, want)
			}
		}
	}
}

// sendBoth sends a request to both servers, and fails unless both answer it alike, with the
// given code.
func sendBoth(t *testing.T, c credential, method, path, body string, code int) answer {
	t.Helper()
	return sendPair(t, servers(), c, method, path, body, code)
}

// sendPair is sendBoth for a reference and tested servers that belong to one test.
func sendPair(t *testing.T, pair []*server, c credential, method, path, body string, code int) answer {
	t.Helper()
	var answers []answer
	for _, s := range pair {
		a, err := s.send(t.Context(), c, method, path, body)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if diff := gocmp.Diff(answers[0], answers[1]); diff != "" {
		t.Errorf("%s %s (-kube-apiserver +tested):\n%s", method, path, diff)
	}
	if answers[1].Code != code {
		t.Errorf("%s %s: %+v, want %d", method, path, answers[1], code)
	}
	return answers[1]
}

// eventually waits until check returns nil. On a timeout it fails with the last error. It
// may be called in a cleanup.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	last := errors.New("never asked")
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("not within %v: %v", patience, last)
	}
}

// replicas returns the addresses of the replicas that serve the built-in resources; these
// read the configurations of authenticators and authorizers.
func (s *server) replicas() (urls []string) {
	tier := cluster.Tier(s.cluster.Config.Topology)
	if s.cluster.Config.Topology == cluster.Tiers {
		tier = cluster.Core
	}
	for i := 0; s.cluster.Process(tier, i) != nil; i++ {
		urls = append(urls, s.cluster.ReplicaURL(tier, i))
	}
	return urls
}

// reloads matches the counters of reloaded configurations.
var reloads = regexp.MustCompile(`(?m)^apiserver_(\w+)_config_controller_automatic_reloads_total\{.*status="(\w+)"\} (\S+)`)

// reloaded returns how often each replica has reloaded a kind of configuration
// ("authentication") with an outcome ("success"), by address.
func (s *server) reloaded(t *testing.T, kind, outcome string) map[string]string {
	t.Helper()
	counts := map[string]string{}
	for _, url := range s.replicas() {
		counts[url] = "0"
		admin, err := site.pki.Admin.Load()
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client(&admin).Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reloads.FindAllSubmatch(content, -1) {
			if bytes.Equal(m[1], []byte(kind)) && bytes.Equal(m[2], []byte(outcome)) {
				counts[url] = string(m[3])
			}
		}
	}
	return counts
}

// reload replaces the configuration of a kind, and waits until every replica has reported
// the outcome, "success" or "failure".
func reload(t *testing.T, kind, content, outcome string) {
	t.Helper()
	var before []map[string]string
	for _, s := range servers() {
		before = append(before, s.reloaded(t, kind, outcome))
	}
	overwrite(t, kind+".yaml", []byte(content))
	for i, s := range servers() {
		eventually(t, func(context.Context) error {
			for url, n := range s.reloaded(t, kind, outcome) {
				if n == before[i][url] {
					return fmt.Errorf("%s %s has not read the new %s configuration with %s", s.cluster.Config.Topology, url, kind, outcome)
				}
			}
			return nil
		})
	}
}

// overwrite replaces a file atomically.
func overwrite(t *testing.T, name string, content []byte) {
	t.Helper()
	part := file(name + ".new")
	if err := errors.Join(os.WriteFile(part, content, 0o600), os.Rename(part, file(name))); err != nil {
		t.Fatal(err)
	}
}

// load reads a key pair.
func load(t *testing.T, pair pki.Pair) *tls.Certificate {
	t.Helper()
	certificate, err := pair.Load()
	if err != nil {
		t.Fatal(err)
	}
	return &certificate
}

// full skips a test with -short.
func full(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not part of the fast half (-short)")
	}
}

func encoded(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

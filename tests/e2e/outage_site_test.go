package e2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
)

// The paths that TestOutage requests, by owner.
const (
	ofAggregator = "/apis/apiregistration.k8s.io/v1/apiservices"
	ofCore       = "/api/v1/namespaces/outage/configmaps"
	ofExtensions = "/apis/outage.triune.dev/v1/namespaces/outage/widgets"
	ofRemote     = "/apis/remote.triune.dev/v1/things"
)

const (
	// promptly is how soon a tier reports that another one is down.
	promptly = time.Second
	// impatience is the timeout of requests that may reach a server that does not answer,
	// and overdue is when they must have ended, on a busy machine.
	impatience = 2 * time.Second
	overdue    = impatience + 2*time.Second
)

// site is a control plane with one replica of each tier, each with its own etcd, and a
// remote API server, so that each of them can fail alone.
type site struct {
	c      *cluster.Cluster
	client *http.Client // the administrator's
	plain  *http.Client // without a certificate
	remote *httptest.Server

	// seen is a token of a ServiceAccount that every tier has reviewed, and unseen one that
	// none has.
	seen, unseen string
}

// newSite starts a site. Its extensions tier does not use core's answers for longer than a
// moment, its aggregator as long as it does by default.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{c: cluster.Run(t, cluster.Config{
		Topology:    cluster.Tiers,
		EtcdPerTier: true,
		Flags: map[cluster.Tier][]string{
			cluster.Extensions: {
				"--authentication-token-webhook-cache-ttl=100ms",
				"--authentication-max-staleness=500ms",
				"--authorization-max-staleness=500ms",
				"--crd-establish-delay=0s",
			},
			cluster.Aggregator: {"--authentication-token-webhook-cache-ttl=100ms"},
		},
	})}
	roots, err := pki.LoadPool(s.c.PKI.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := s.c.PKI.Admin.Load()
	if err != nil {
		t.Fatal(err)
	}
	// Each request has its own connection: the test is about how tiers notice a lost peer,
	// not about how this client does.
	client := func(certificates ...tls.Certificate) *http.Client {
		return &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: certificates},
			DisableKeepAlives: true,
		}}
	}
	s.client, s.plain = client(admin), client()
	s.startRemote(t)
	s.fill(t)
	return s
}

// startRemote starts an extension API server with one group-version.
func (s *site) startRemote(t *testing.T) {
	s.remote = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch req.URL.Path {
		case "/apis":
			fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"remote.triune.dev","versions":[{"groupVersion":"remote.triune.dev/v1","version":"v1"}]}]}`)
		case "/apis/remote.triune.dev/v1":
			fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"remote.triune.dev/v1","resources":[{"name":"things","kind":"Thing","verbs":["list"]}]}`)
		case ofRemote:
			fmt.Fprint(w, `{"kind":"ThingList","apiVersion":"remote.triune.dev/v1","items":[]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		}
	}))
	t.Cleanup(func() { s.remote.Close() })
}

// fill creates an object in every tier, and tokens of every kind.
func (s *site) fill(t *testing.T) {
	t.Helper()
	k := newKubectl(t, s.c, "outage")
	k.run("create", "namespace", "outage")
	k.run("create", "serviceaccount", "robot")
	k.run("create", "configmap", "one")
	k.stdin(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.outage.triune.dev}
spec:
  group: outage.triune.dev
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: outage}
rules:
- {apiGroups: [apiregistration.k8s.io], resources: [apiservices], verbs: [list, create]}
- {apiGroups: [outage.triune.dev], resources: [widgets], verbs: [list, create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: outage}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: outage}
subjects:
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: alice}
- {kind: ServiceAccount, namespace: outage, name: robot}
---
apiVersion: v1
kind: Service
metadata: {name: remote}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.remote.triune.dev}
spec:
  group: remote.triune.dev
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {name: remote, namespace: outage, port: `+strconv.Itoa(s.remote.Listener.Addr().(*net.TCPAddr).Port)+`}
`).run("apply", "-f", "-")
	k.run("wait", "--for=condition=Established", "crd/widgets.outage.triune.dev", "--timeout=30s")
	k.run("wait", "--for=condition=Available", "apiservice/v1.remote.triune.dev", "--timeout=60s")
	s.seen = strings.TrimSpace(k.run("create", "token", "robot"))
	s.unseen = strings.TrimSpace(k.run("create", "token", "robot", "--duration=11m"))
	eventually(t, patience, func(context.Context) error {
		for _, path := range []string{ofCore, ofExtensions, ofRemote} {
			if a := s.get(t, cluster.Aggregator, path); a.code != http.StatusOK {
				return a
			}
		}
		for tier, path := range map[cluster.Tier]string{cluster.Aggregator: ofAggregator, cluster.Extensions: ofExtensions} {
			for _, token := range []string{s.seen, "alice-token"} {
				if a := s.ask(t, call{to: tier, path: path, token: token}); a.code != http.StatusOK {
					return a
				}
			}
		}
		if groups := s.discovered(t, cluster.Aggregator); groups["outage.triune.dev"] != "Current" || groups["remote.triune.dev"] != "Current" {
			return fmt.Errorf("discovery: %v", groups)
		}
		return nil
	})
}

// call is a request to the only replica of a tier, without going through others.
type call struct {
	to     cluster.Tier
	method string // GET if empty
	path   string
	accept string
	body   string
	// token replaces the administrator's certificate.
	token string
}

// answer is the result of a call. Its error text names the request.
type answer struct {
	asked   string
	code    int // 0 without an answer
	header  http.Header
	body    string
	message string // of a metav1.Status
	took    time.Duration
}

func (a answer) Error() string {
	return fmt.Sprintf("%s: %d in %v: %.300s", a.asked, a.code, a.took.Round(time.Millisecond), a.body)
}

func (s *site) ask(t *testing.T, q call) answer {
	t.Helper()
	q.method = cmp.Or(q.method, http.MethodGet)
	a := answer{asked: fmt.Sprintf("%s %s of %s", q.method, q.path, q.to)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, s.c.ReplicaURL(q.to, 0)+q.path, strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", cmp.Or(q.accept, "application/json"))
	client := s.client
	if q.token != "" {
		client = s.plain
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	begin := time.Now()
	defer func() { a.took = time.Since(begin) }()
	res, err := client.Do(req)
	if err != nil {
		a.body, a.took = err.Error(), time.Since(begin)
		return a
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	a.code, a.header, a.body, a.took = res.StatusCode, res.Header, string(data), time.Since(begin)
	if err != nil {
		a.code, a.body = 0, a.body+": "+err.Error()
	}
	var status metav1.Status
	if json.Unmarshal(data, &status) == nil && status.Kind == "Status" {
		a.message = status.Message
	}
	return a
}

func (s *site) get(t *testing.T, tier cluster.Tier, path string) answer {
	t.Helper()
	return s.ask(t, call{to: tier, path: path})
}

// wantOK checks that a tier, and those to which it passes requests on, answer 200.
func (s *site) wantOK(t *testing.T, tier cluster.Tier, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if a := s.get(t, tier, path); a.code != http.StatusOK {
			t.Errorf("want 200, got %v", a)
		}
	}
}

// wantCreated checks that the creation of an object is answered with 201.
func (s *site) wantCreated(t *testing.T, tier cluster.Tier, path, name string) {
	t.Helper()
	if a := s.create(t, tier, path, name, ""); a.code != http.StatusCreated {
		t.Errorf("want 201, got %v", a)
	}
}

func (s *site) create(t *testing.T, tier cluster.Tier, path, name, token string) answer {
	t.Helper()
	body := map[string]string{
		ofAggregator: `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.` + name + `.example.com"},"spec":{"group":"` + name + `.example.com","version":"v1","groupPriorityMinimum":10,"versionPriority":10}}`,
		ofCore:       `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`,
		ofExtensions: `{"apiVersion":"outage.triune.dev/v1","kind":"Widget","metadata":{"name":"` + name + `"}}`,
	}[path]
	return s.ask(t, call{to: tier, method: http.MethodPost, path: path + "?timeout=" + impatience.String(), body: body, token: token})
}

// wantUnavailable checks for the 503 of a tier that needs another one.
func (s *site) wantUnavailable(t *testing.T, missing cluster.Tier, a answer) {
	t.Helper()
	if a.code != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.message, string(missing)+" tier") || a.took > promptly {
		t.Errorf("want 503 with Retry-After that names the %s tier within %v, got %v", missing, promptly, a)
	}
}

// wantServerError checks for a server error, in time. A response that begins at the very
// end of the timeout is aborted, as in kube-apiserver
// (WithTimeoutForNonLongRunningRequests). Before the timeout, no connection may break.
func (s *site) wantServerError(t *testing.T, a answer) {
	t.Helper()
	broken := a.code == 0 && a.took >= impatience
	if a.code < 500 && !broken || a.took > overdue {
		t.Errorf("want an error of the server within %v, got %v", overdue, a)
	}
}

// slow returns the path with a timeout that the server has to respect.
func slow(path string) string { return path + "?timeout=" + impatience.String() }

// discovered returns the freshness of each group in a tier's discovery.
func (s *site) discovered(t *testing.T, tier cluster.Tier) map[string]string {
	t.Helper()
	a := s.ask(t, call{to: tier, path: "/apis", accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"})
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct{ Freshness string }
		}
	}
	if err := json.Unmarshal([]byte(a.body), &list); a.code != http.StatusOK || err != nil {
		t.Errorf("discovery: %v, %v", err, a)
	}
	if a.took > promptly {
		t.Errorf("discovery took %v", a.took)
	}
	groups := map[string]string{}
	for _, g := range list.Items {
		for _, v := range g.Versions {
			groups[g.Metadata.Name] = v.Freshness
		}
	}
	return groups
}

// waitStale waits until a tier marks a group as Stale, and fails if the tier leaves it out
// of discovery.
func (s *site) waitStale(t *testing.T, tier cluster.Tier, group string) {
	t.Helper()
	eventually(t, patience, func(context.Context) error {
		switch freshness := s.discovered(t, tier)[group]; freshness {
		case "Stale":
			return nil
		case "":
			t.Fatalf("%s has left %s out of discovery", tier, group)
			return nil
		default:
			return fmt.Errorf("%s is %s", group, freshness)
		}
	})
}

// unready waits until a check is among the failures of an endpoint.
func (s *site) unready(t *testing.T, tier cluster.Tier, endpoint, check string) {
	t.Helper()
	eventually(t, patience, func(context.Context) error {
		a := s.get(t, tier, "/"+endpoint+"?verbose")
		if a.code == http.StatusOK || !strings.Contains(a.body, "[-]"+check+" ") {
			return fmt.Errorf("%s has not failed: %w", check, a)
		}
		return nil
	})
}

// kill kills a process until the end of the test, then starts it and waits until the site
// recovers without any other restart.
func (s *site) kill(t *testing.T, name cluster.Tier) {
	t.Helper()
	s.c.Kill(name, 0)
	t.Cleanup(func() { s.start(t, name); s.waitReady(t) })
}

// freeze freezes a process until the end of the test.
func (s *site) freeze(t *testing.T, name cluster.Tier) {
	t.Helper()
	s.c.Process(name, 0).Pause()
	t.Cleanup(func() { s.c.Process(name, 0).Resume(); s.waitReady(t) })
}

func (s *site) start(t *testing.T, name cluster.Tier) {
	t.Helper()
	if err := s.c.StartReplica(context.WithoutCancel(t.Context()), name, 0); err != nil {
		t.Fatal(err)
	}
}

// waitReady waits until every tier is ready and reaches the tiers behind it.
func (s *site) waitReady(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		err := s.problem(t)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not well again within %v: %v", patience, err)
		}
	}
}

func (s *site) problem(t *testing.T) error {
	for _, q := range []call{
		{to: cluster.Aggregator, path: "/readyz?verbose"},
		{to: cluster.Core, path: "/readyz?verbose"},
		{to: cluster.Extensions, path: "/readyz?verbose"},
		{to: cluster.Aggregator, path: slow(ofAggregator)},
		{to: cluster.Aggregator, path: slow(ofCore)},
		{to: cluster.Aggregator, path: slow(ofExtensions)},
		{to: cluster.Aggregator, path: slow(ofRemote)},
		{to: cluster.Aggregator, path: slow(ofAggregator), token: s.seen},
		{to: cluster.Extensions, path: slow(ofExtensions), token: s.seen},
	} {
		if a := s.ask(t, q); a.code != http.StatusOK {
			return a
		}
	}
	return nil
}

// reviveRemote starts the remote server again at its address.
func (s *site) reviveRemote(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	handler := s.remote.Config.Handler
	s.remote = httptest.NewUnstartedServer(handler)
	s.remote.Listener.Close()
	s.remote.Listener = listener
	s.remote.StartTLS()
}

// openWatch is a watch that is being read.
type openWatch struct {
	names chan string // names of the objects of its events; closed at its end
}

// watch opens a watch from the current state, and returns after its headers have arrived.
func (s *site) watch(t *testing.T, tier cluster.Tier, path string) openWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.c.ReplicaURL(tier, 0)+path+"?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("watch %s of %s: %s", path, tier, res.Status)
	}
	w := openWatch{names: make(chan string, 1000)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(w.names)
		for decoder := json.NewDecoder(res.Body); ; {
			var event struct{ Object metav1.PartialObjectMetadata }
			if decoder.Decode(&event) != nil {
				return
			}
			w.names <- event.Object.Name
		}
	})
	t.Cleanup(func() { cancel(); reading.Wait(); res.Body.Close() })
	return w
}

// wantEnd checks that the watch ends in some way.
func (w openWatch) wantEnd(t *testing.T) {
	t.Helper()
	w.until(t, "its end", func(_ string, open bool) bool { return !open })
}

// wantEvent checks for an event of an object on the open watch.
func (w openWatch) wantEvent(t *testing.T, name string) {
	t.Helper()
	w.until(t, name, func(got string, open bool) bool { return open && got == name })
}

func (w openWatch) until(t *testing.T, what string, check func(name string, open bool) bool) {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case name, open := <-w.names:
			if check(name, open) {
				return
			}
			if !open {
				t.Errorf("the watch has ended before %s", what)
				return
			}
		case <-limit:
			t.Errorf("the watch has not come to %s within %v", what, patience)
			return
		}
	}
}

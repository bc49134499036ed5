package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

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
	// promptly bounds the time after which a tier reports that another one is down.
	promptly = time.Second
	// impatience is the timeout of requests that may reach a server that hangs. They must
	// have ended after overdue, even on a busy machine.
	impatience = 2 * time.Second
	overdue    = impatience + 2*time.Second
)

// site is a control plane with one replica of each tier, an etcd for each, and a remote API
// server, so that any one of them can be down alone.
type site struct {
	c      *cluster.Cluster
	client *http.Client // the administrator's
	plain  *http.Client // without a certificate
	remote *httptest.Server

	// seen is a token of a ServiceAccount that every tier has reviewed, unseen one that
	// none has.
	seen, unseen string
}

// newSite starts a site. The extensions tier caches decisions of core only for a moment, the
// aggregator as long as by default.
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
	// Each request has a separate connection: the test is about how the tiers, not this
	// client, detect that a peer is gone.
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

// fill creates an object for each owner, and identities of each kind.
func (s *site) fill(t *testing.T) {
	t.Helper()
	k := newKubectl(t, s.c, "outage")
	k.Run("create", "namespace", "outage")
	k.Run("create", "serviceaccount", "robot")
	k.Run("create", "configmap", "one")
	k.Stdin(`apiVersion: apiextensions.k8s.io/v1
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
`).Run("apply", "-f", "-")
	k.Run("wait", "--for=condition=Established", "crd/widgets.outage.triune.dev", "--timeout=30s")
	k.Run("wait", "--for=condition=Available", "apiservice/v1.remote.triune.dev", "--timeout=60s")
	s.seen = strings.TrimSpace(k.Run("create", "token", "robot"))
	s.unseen = strings.TrimSpace(k.Run("create", "token", "robot", "--duration=11m"))
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

// discovered returns the freshness of each group in the discovery of a tier.
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

// waitStale waits until a tier marks a group as Stale whose owner is down. The tier must
// never omit the group.
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

// unready waits until a check of an endpoint fails.
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

// kill kills a process. At the end of the test it starts the process again and waits until
// everything has recovered without another restart.
func (s *site) kill(t *testing.T, name cluster.Tier) {
	t.Helper()
	s.c.Kill(name, 0)
	t.Cleanup(func() { s.start(t, name); s.waitReady(t) })
}

// freeze suspends a process until the end of the test.
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

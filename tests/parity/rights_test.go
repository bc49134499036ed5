package parity

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/keyutil"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tokens"
)

// matrixClients are the certificates of the matrix. The permissions of their users are in
// testdata/matrix/rights.yaml.
var matrixClients = []pki.Client{
	{Name: "authenticated", CommonName: "authenticated"},
	{Name: "view", CommonName: "viewer"},
	{Name: "edit", CommonName: "editor"},
	{Name: "admin-of-one", CommonName: "administrator"},
	{Name: "cluster-admin", CommonName: "chief", Organizations: []string{"matrix:chiefs"}},
	{Name: "node", CommonName: "system:node:matrix", Organizations: []string{"system:nodes"}},
	{Name: "nodes-without-a-name", CommonName: "nodule", Organizations: []string{"system:nodes"}},
	{Name: "paths", CommonName: "pathfinder"},
	{Name: "impersonator", CommonName: "impersonator"},
	{Name: "constrained", CommonName: "constrained"},
	{Name: "marked", CommonName: "marked"},
}

// matrixIdentities returns the senders of the requests of the matrix, by description. ${…}
// are tokens that the cases of testdata/matrix save.
func matrixIdentities(expired string) map[string]Request {
	bearer := func(token string) Request {
		return Request{User: "anonymous", Headers: map[string]string{"Authorization": "Bearer " + token}}
	}
	as := func(headers map[string]string) Request { return Request{User: "impersonator", Headers: headers} }
	constrained := func(headers map[string]string) Request { return Request{User: "constrained", Headers: headers} }
	all := map[string]Request{
		"anonymous":         {User: "anonymous"},
		"system:masters":    {User: "admin"},
		"a foreign CA":      {User: "nobody"},
		"a token of a file": {User: "alice"},
		"no such token":     {User: "forged"},

		"an expired token":              bearer(expired),
		"a token of another audience":   bearer("${elsewhere}"),
		"a token for some names":        bearer("${named}"),
		"a token for some subresources": bearer("${subresources}"),

		"a front proxy":            {User: "frontend", Headers: map[string]string{"X-Remote-User": "viewer"}},
		"a front proxy for nobody": {User: "frontend", Headers: map[string]string{"X-Remote-User": "system:anonymous", "X-Remote-Group": "system:unauthenticated"}},

		"impersonates a user":                            as(map[string]string{"Impersonate-User": "viewer"}),
		"impersonates a user it may not":                 as(map[string]string{"Impersonate-User": "chief"}),
		"impersonates a group":                           as(map[string]string{"Impersonate-User": "viewer", "Impersonate-Group": "matrix:chiefs"}),
		"impersonates a group it may not":                as(map[string]string{"Impersonate-User": "viewer", "Impersonate-Group": "system:masters"}),
		"impersonates a uid":                             as(map[string]string{"Impersonate-User": "viewer", "Impersonate-Uid": "7"}),
		"impersonates a uid it may not":                  as(map[string]string{"Impersonate-User": "viewer", "Impersonate-Uid": "8"}),
		"impersonates an extra":                          as(map[string]string{"Impersonate-User": "viewer", "Impersonate-Extra-Scopes": "a"}),
		"impersonates an extra it may not":               as(map[string]string{"Impersonate-User": "viewer", "Impersonate-Extra-Scopes": "b"}),
		"impersonates a group without a user":            as(map[string]string{"Impersonate-Group": "matrix:chiefs"}),
		"impersonates a service account":                 as(map[string]string{"Impersonate-User": "system:serviceaccount:matrix:named"}),
		"impersonates a node":                            as(map[string]string{"Impersonate-User": "system:node:matrix"}),
		"impersonates a user for some things":            constrained(map[string]string{"Impersonate-User": "viewer"}),
		"impersonates another user for some things":      constrained(map[string]string{"Impersonate-User": "editor"}),
		"impersonates a user it may not for anything":    constrained(map[string]string{"Impersonate-User": "chief"}),
		"impersonates a group for some things":           constrained(map[string]string{"Impersonate-User": "viewer", "Impersonate-Group": "matrix:chiefs"}),
		"impersonates a service account for some things": constrained(map[string]string{"Impersonate-User": "system:serviceaccount:matrix:named"}),
		"impersonates a node for some things":            constrained(map[string]string{"Impersonate-User": "system:node:matrix"}),

		"a token that impersonates somebody":   {User: "alice", Headers: map[string]string{"Impersonate-User": "viewer"}},
		"system:masters impersonate a user":    {User: "admin", Headers: map[string]string{"Impersonate-User": "viewer"}},
		"system:masters impersonate anonymous": {User: "admin", Headers: map[string]string{"Impersonate-User": "system:anonymous"}},
	}
	for _, client := range matrixClients {
		if client.Name != "marked" {
			all[client.Name] = Request{User: client.Name}
		}
	}
	return all
}

// A cell is one request by one identity.
type cell struct {
	who string
	Request
}

// sampled is the number of cells with -short.
const sampled = 500

// TestMatrix sends every verb on every resource of every tier, on resources that no tier
// has, and on non-resource paths, as every identity. Status, reason and message must be
// kube-apiserver's. Allowed requests are for objects that do not exist.
func TestMatrix(t *testing.T) {
	p := rights(t)
	cells := matrix(t, expiredToken(t, peers.tested.Cluster.PKI))
	if least := 5000; len(cells) < least {
		t.Errorf("%d cells, want %d", len(cells), least)
	}
	if testing.Short() {
		for i := range sampled { // spread over all cells
			cells[i] = cells[i*len(cells)/sampled]
		}
		cells = cells[:sampled]
	}
	began := time.Now()
	different, err := p.compareCells(cells)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d cells in %v", len(cells), time.Since(began).Round(time.Second))
	for _, what := range slices.Sorted(maps.Keys(different)) {
		where := different[what]
		t.Errorf("%d cells:\n%s\nsuch as %s", len(where), what, strings.Join(where[:min(5, len(where))], "\n        "))
	}
}

// matrix returns all cells in a fixed order.
func matrix(t *testing.T, expired string) []cell {
	t.Helper()
	requests := otherRequests()
	groups := groupVersions(t, peers.reference)
	custom := groupVersion{path: "/apis/matrix.example/v1"}
	var list struct{ Resources []struct{ Name string } }
	get(t, peers.reference, custom.path, &list)
	for _, gv := range groups {
		for _, r := range gv.resources {
			requests = append(requests, verbs(gv.path, r.Name, r.Namespaced)...)
		}
	}
	for _, r := range list.Resources {
		requests = append(requests, verbs(custom.path, r.Name, true)...)
	}
	identities := matrixIdentities(expired)
	var cells []cell
	for _, who := range slices.Sorted(maps.Keys(identities)) {
		for _, r := range requests {
			headers := maps.Clone(r.Headers)
			if headers == nil {
				headers = map[string]string{}
			}
			maps.Copy(headers, identities[who].Headers)
			r.User, r.Headers = identities[who].User, headers
			cells = append(cells, cell{who, r})
		}
	}
	return cells
}

// verbs returns one request for each verb on a resource or subresource ("pods/log").
func verbs(group, resource string, namespaced bool) []Request {
	resource, subresource, isSub := strings.Cut(resource, "/")
	base := group + "/"
	if namespaced {
		base += "namespaces/matrix/"
	}
	merge := map[string]string{"Content-Type": "application/merge-patch+json"}
	object := base + resource + "/none-such"
	if isSub {
		object += "/" + subresource
		return []Request{
			{Do: "GET " + object},
			{Do: "POST " + object + "?dryRun=All", Body: "{}"},
			{Do: "PUT " + object + "?dryRun=All", Body: "{}"},
			{Do: "PATCH " + object + "?dryRun=All", Body: "{}", Headers: merge},
			{Do: "DELETE " + object},
		}
	}
	collection := base + resource
	all := []Request{
		{Do: "GET " + object},
		{Do: "GET " + collection + "?labelSelector=none-such"},
		{Do: "GET " + collection + "?watch=true&resourceVersion=none-such"},
		{Do: "POST " + collection + "?dryRun=All", Body: "{}"},
		{Do: "PUT " + object + "?dryRun=All", Body: "{}"},
		{Do: "PATCH " + object + "?dryRun=All", Body: "{}", Headers: merge},
		{Do: "DELETE " + object},
		{Do: "DELETE " + collection + "?labelSelector=none-such"},
	}
	if namespaced {
		all = append(all,
			Request{Do: "GET " + group + "/" + resource + "?labelSelector=none-such"},
			Request{Do: "GET " + group + "/namespaces/default/" + resource + "/none-such"},
			Request{Do: "GET " + base + resource + "/some-other"})
	}
	return all
}

// otherRequests returns requests for unknown resources and non-resource paths.
func otherRequests() []Request {
	var all []Request
	for _, path := range []string{
		"/api/v1/nothings", "/api/v1/namespaces/matrix/nothings", "/api/v1/namespaces/matrix/nothings/none-such",
		"/api/v2/pods", "/apis/apps/v1/nothings", "/apis/apps/v9/deployments", "/apis/apiregistration.k8s.io/v1/nothings",
		"/apis/apiextensions.k8s.io/v1/nothings", "/apis/matrix.example/v1/nothings", "/apis/matrix.example/v1/namespaces/matrix/nothings/none-such",
		"/apis/matrix.example/v9/widgets", "/apis/none.example/v1/things", "/apis/none.example/v1/namespaces/matrix/things/none-such",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
			all = append(all, Request{Do: method + " " + path, Body: "{}"})
		}
	}
	for _, path := range []string{
		"/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/apis/matrix.example", "/apis/matrix.example/v1", "/apis/none.example",
		"/apis/apiregistration.k8s.io/v1", "/apis/apiextensions.k8s.io/v1", "/healthz", "/healthz/ping", "/livez", "/livez/ping", "/readyz", "/readyz/ping", "/version",
		"/metrics", "/metrics/slis", "/debug/pprof/cmdline", "/debug/flags/v", "/logs", "/logs/none-such", "/openapi/v3", "/openid/v1/jwks",
		"/.well-known/openid-configuration", "/nothing", "/nothing/at/all",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			all = append(all, Request{Do: method + " " + path})
		}
	}
	return all
}

// compareCells returns the cells whose answers differ, by the answers.
func (p *pair) compareCells(cells []cell) (different map[string][]string, err error) {
	different = map[string][]string{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(8)
	for _, c := range cells {
		group.Go(func() error {
			want, err := p.decision(c, peers.reference, p.reference)
			if err != nil {
				return err
			}
			got, err := p.decision(c, peers.tested, p.tested)
			if err != nil {
				return err
			}
			if got == want {
				return nil
			}
			what := fmt.Sprintf("-%d %s\n+%d %s", want.code, want.reason, got.code, got.reason)
			if want.code == got.code && want.reason == got.reason {
				what = fmt.Sprintf(" %d %s, another message", want.code, want.reason)
			}
			mu.Lock()
			defer mu.Unlock()
			different[what] = append(different[what], fmt.Sprintf("%s: %s\n          -%s\n          +%s", c.who, c.Do, want.message, got.message))
			return nil
		})
	}
	return different, group.Wait()
}

// decision has the parts of an answer that are compared.
type decision struct {
	code            int
	reason, message string
}

func (p *pair) decision(c cell, peer *Peer, vars map[string]string) (decision, error) {
	a, err := peer.Send(p.t.Context(), c.Request, vars)
	if err != nil {
		return decision{}, fmt.Errorf("%s: %s: %w", c.who, c.Do, err)
	}
	d := decision{code: a.Code}
	if a.Code < http.StatusBadRequest {
		return d, nil
	}
	normal, err := a.Normal(&Normaliser{Now: time.Now(), Hosts: []string{strings.TrimPrefix(peer.Cluster.URL, "https://")}})
	if err != nil {
		return d, fmt.Errorf("%s: %s: %w: %.200s", c.who, c.Do, err, a.Body)
	}
	if topology := peers.tested.Cluster.Config.Topology; peer == peers.reference && topology != cluster.KubeAPIServer {
		normal = expected(topology, c.Request, normal)
	}
	status, ok := normal.Body.(map[string]any)
	if !ok {
		d.message = fmt.Sprint(normal.Body)
		return d, nil
	}
	d.reason, d.message = fmt.Sprint(status["reason"]), fmt.Sprint(status["message"])
	return d, nil
}

// given has the variables of the cases that granted the permissions of the matrix, for the
// reference and for the server under test.
var given [2]map[string]string

// rights grants the permissions once, and returns a conversation with the tokens. Tests
// that call it come after the others, because the CRD would appear in their documents.
func rights(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	if given[0] != nil {
		p.reference, p.tested = maps.Clone(given[0]), maps.Clone(given[1])
		return p
	}
	cases, err := LoadCases("testdata/matrix")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Concat(slices.Collect(maps.Values(cases))...) {
		for _, r := range c.Steps {
			r.Unchecked = true
			p.same(r)
		}
	}
	awaitRights(t)
	given = [2]map[string]string{maps.Clone(p.reference), maps.Clone(p.tested)}
	return p
}

// marks are paths that the last rules allow the user "marked" to read, by the tier that
// answers them.
var marks = map[cluster.Tier][]string{
	cluster.Aggregator: {"/apis/matrix.example", "/apis/apiregistration.k8s.io/v1/apiservices/none-such"},
	cluster.Core:       {"/api/v1/nodes/none-such", "/api/v1/namespaces/matrix/configmaps/none-such"},
	cluster.Extensions: {"/apis/matrix.example/v1/widgets", "/apis/matrix.example/v1/namespaces/matrix/widgets/none-such"},
}

// awaitRights waits until every replica knows the last rule of each kind, and therefore all
// rules.
func awaitRights(t *testing.T) {
	t.Helper()
	for _, peer := range []*Peer{peers.reference, peers.tested} {
		for _, tier := range peer.Cluster.ServingTiers() {
			paths, ok := marks[tier]
			if !ok { // one process has all tiers
				paths = slices.Concat(slices.Collect(maps.Values(marks))...)
			}
			for i := 0; peer.Cluster.Process(tier, i) != nil; i++ {
				for _, path := range paths {
					awaitMark(t, peer, peer.Cluster.ReplicaURL(tier, i)+path)
				}
			}
		}
	}
}

func awaitMark(t *testing.T, peer *Peer, url string) {
	t.Helper()
	list := !strings.HasSuffix(url, "/none-such")
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, requestTimeout, true, func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		resp, err := peer.clients["marked"].Do(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if list {
			return resp.StatusCode == http.StatusOK, err
		}
		return resp.StatusCode == http.StatusNotFound && bytes.Contains(body, []byte(`none-such\" not found`)), err
	})
	if err != nil {
		t.Fatalf("%s: the rights are not known: %s: %v", peer.Name, url, err)
	}
}

// expiredToken returns an expired token of a ServiceAccount, signed as servers do.
func expiredToken(t *testing.T, keys *pki.PKI) string {
	t.Helper()
	key, err := keyutil.PrivateKeyFromFile(keys.ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	const issuer = "https://kubernetes.default.svc.cluster.local"
	hour := time.Now().Add(-time.Hour).Unix()
	token, err := tokens.Sign(key, "", map[string]any{
		"iss": issuer, "aud": []string{issuer}, "sub": "system:serviceaccount:matrix:named",
		"iat": hour, "nbf": hour, "exp": hour + 600,
		"kubernetes.io": map[string]any{"namespace": "matrix", "serviceaccount": map[string]any{"name": "named"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
)

// TestStolenKeysOfTiers checks that the keys of the aggregator or of the extensions tier
// allow nobody to read a Secret, to act as another user, or to gain permissions, in any
// tier, with any headers.
func TestStolenKeysOfTiers(t *testing.T) {
	needs(t)
	config := cluster.Config{Topology: cluster.Tiers}
	c := cluster.Run(t, config)
	k := newKubectl(t, c, "default")
	k.Run("create", "secret", "generic", "treasure", "--from-literal=gold=much")
	masters := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
	core := http.Header{"X-Remote-User": {pki.TierPrefix + "core"}}
	with := func(header http.Header, more ...string) http.Header {
		header = header.Clone()
		if header == nil {
			header = http.Header{}
		}
		for i := 0; i < len(more); i += 2 {
			header.Add(more[i], more[i+1])
		}
		return header
	}
	const handedOver, asserted = "X-Remote-Client-Certificates", "X-Remote-Client-Asserted"
	says := map[string]http.Header{
		"nothing":                      {},
		"masters":                      masters,
		"core":                         core,
		"that he impersonates masters": {"Impersonate-User": {"admin"}, "Impersonate-Group": {"system:masters"}},
		"that a client is nobody":      {handedOver: {""}},
		"masters, handing over":        with(masters, handedOver, ""),
		"masters, as a client's proxy": {handedOver: {""}, asserted: {"X-Remote-User=admin&X-Remote-Group=system%3Amasters"}},
		"a token":                      {handedOver: {""}, "Authorization": {"Bearer treasure"}},
	}
	for _, pair := range []pki.Pair{c.PKI.Tier["extensions"], c.PKI.Tier["aggregator"], c.PKI.Tier["core"]} {
		says["masters, as the proxy "+pair.CertFile] = http.Header{
			handedOver: {certificate(t, pair)}, asserted: {"X-Remote-User=admin&X-Remote-Group=system%3Amasters"},
		}
	}
	binding := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"generateName":"thief-"},` +
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},` +
		`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:anonymous"}]}`
	tries := []struct{ method, path, body string }{
		{http.MethodGet, "/api/v1/namespaces/default/secrets/treasure", ""},
		{http.MethodGet, "/api/v1/secrets", ""},
		{http.MethodGet, "/api/v1/secrets?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", ""},
		{http.MethodGet, "/apis/certificates.k8s.io/v1/certificatesigningrequests", ""},
		{http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding},
		{http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/default/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`},
		{http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All", judgedJSON},
		{http.MethodDelete, "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps?dryRun=All", ""},
	}
	for _, tier := range []string{"aggregator", "extensions"} {
		for _, pair := range []pki.Pair{c.PKI.Tier[tier], c.PKI.Serving[tier]} {
			client := clientWith(t, c, pair)
			for _, at := range []cluster.Tier{cluster.Aggregator, cluster.Core, cluster.Extensions} {
				for what, header := range says {
					for _, try := range tries {
						req, err := http.NewRequestWithContext(t.Context(), try.method, c.ReplicaURL(at, 0)+try.path, strings.NewReader(try.body))
						if err != nil {
							t.Fatal(err)
						}
						req.Header = header.Clone()
						req.Header.Set("Content-Type", "application/json")
						code, body := answerTo(t, client, req)
						if code != http.StatusUnauthorized && code != http.StatusForbidden && code != http.StatusNotFound {
							t.Errorf("%s says %s to %s: %s %s: %d: %.300s", pair.CertFile, what, at, try.method, try.path, code, body)
						}
					}
				}
			}
		}
	}
	// The tiers themselves work.
	if out := k.Run("get", "secret", "treasure", "-o", "jsonpath={.data.gold}"); out == "" {
		t.Error("the administrator cannot read the Secret")
	}
}

// judgedJSON is a CRD to create.
const judgedJSON = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"loots.court.triune.dev"},` +
	`"spec":{"group":"court.triune.dev","scope":"Namespaced","names":{"plural":"loots","singular":"loot","kind":"Loot"},` +
	`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`

// certificate returns the certificate of a pair as it is handed over.
func certificate(t *testing.T, pair pki.Pair) string {
	t.Helper()
	content, err := os.ReadFile(pair.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(content)
	return base64.StdEncoding.EncodeToString(block.Bytes)
}

// clientWith returns a client that presents pair and accepts any server certificate.
func clientWith(t *testing.T, c *cluster.Cluster, pair pki.Pair) *http.Client {
	t.Helper()
	key, err := pair.Load()
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.LoadPool(c.PKI.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{Certificates: []tls.Certificate{key}, RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func answerTo(t *testing.T, client *http.Client, req *http.Request) (code int, body string) {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(fmt.Errorf("%s %s: %w", req.Method, req.URL, err))
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(content)
}

package parity

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reviewed has the attributes for reviews, by description.
var reviewed = map[string]string{
	"a get":                 `"resourceAttributes": {"namespace": "matrix", "verb": "get", "resource": "configmaps", "name": "none-such"}`,
	"a get in another":      `"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "configmaps"}`,
	"a list everywhere":     `"resourceAttributes": {"verb": "list", "resource": "pods"}`,
	"a custom resource":     `"resourceAttributes": {"namespace": "matrix", "verb": "list", "group": "matrix.example", "version": "v1", "resource": "widgets"}`,
	"an API service":        `"resourceAttributes": {"verb": "get", "group": "apiregistration.k8s.io", "resource": "apiservices", "name": "none-such"}`,
	"a subresource":         `"resourceAttributes": {"namespace": "matrix", "verb": "create", "resource": "pods", "subresource": "exec"}`,
	"all verbs":             `"resourceAttributes": {"namespace": "matrix", "verb": "*", "group": "*", "resource": "*"}`,
	"a secret of a node":    `"resourceAttributes": {"namespace": "matrix", "verb": "get", "resource": "secrets", "name": "none-such"}`,
	"a node":                `"resourceAttributes": {"verb": "get", "resource": "nodes", "name": "matrix"}`,
	"pods of a node":        `"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["matrix"]}]}}`,
	"pods of another node":  `"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["other"]}]}}`,
	"a selector as text":    `"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {"rawSelector": "spec.nodeName=matrix"}}`,
	"two selectors":         `"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}}`,
	"a selector of nothing": `"resourceAttributes": {"verb": "list", "resource": "pods", "labelSelector": {}}`,
	"an odd selector":       `"resourceAttributes": {"verb": "list", "resource": "pods", "labelSelector": {"requirements": [{"key": "a", "operator": "Like", "values": ["b"]}]}}`,
	"a path":                `"nonResourceAttributes": {"path": "/metrics", "verb": "get"}`,
	"both":                  `"resourceAttributes": {"verb": "get", "resource": "pods"}, "nonResourceAttributes": {"path": "/", "verb": "get"}`,
	"neither":               `"unknown": true`,
}

// TestAccessReviews asks both servers for the permissions of each identity, by each of the
// four reviews: of oneself, of others, of others in a namespace, and of all rules.
func TestAccessReviews(t *testing.T) {
	p := rights(t)
	const group = "POST /apis/authorization.k8s.io/v1/"
	users := map[string]string{
		"viewer": "", "editor": "", "administrator": "", "pathfinder": "", "impersonator": "", "nobody": "", "system:anonymous": "system:unauthenticated",
		"chief": "matrix:chiefs", "root": "system:masters", "system:node:matrix": "system:nodes", "nodule": "system:nodes", "": "system:masters",
		"system:serviceaccount:matrix:named": "system:serviceaccounts", "system:serviceaccount:matrix:subresources": "system:serviceaccounts",
		"system:kube-controller-manager": "", "system:kube-scheduler": "",
	}
	for _, what := range slices.Sorted(maps.Keys(reviewed)) {
		t.Run(what, func(t *testing.T) {
			p := &pair{t: t, peers: p.peers, reference: p.reference, tested: p.tested, normalisers: p.normalisers}
			for _, client := range matrixClients {
				p.same(Request{Do: group + "selfsubjectaccessreviews", User: client.Name, Body: "{\"spec\": {" + reviewed[what] + "}}"})
			}
			for _, name := range slices.Sorted(maps.Keys(users)) {
				body := fmt.Sprintf(`{"metadata": {"namespace": "matrix"}, "spec": {"user": %q, "groups": [%q], %s}}`, name, users[name], reviewed[what])
				p.same(Request{Do: group + "namespaces/matrix/localsubjectaccessreviews", Body: body})
				p.same(Request{Do: group + "namespaces/default/localsubjectaccessreviews", Body: body})
				p.same(Request{Do: group + "subjectaccessreviews", Body: strings.Replace(body, `"namespace": "matrix"}, "spec"`, `}, "spec"`, 1)})
			}
		})
	}
	t.Run("rules", func(t *testing.T) {
		for _, client := range matrixClients {
			for _, namespace := range []string{"matrix", "default", "none-such", ""} {
				var rules [2]string
				for i, peer := range []*Peer{peers.reference, peers.tested} {
					r := Request{Do: group + "selfsubjectrulesreviews", User: client.Name, Body: fmt.Sprintf(`{"spec": {"namespace": %q}}`, namespace)}
					a, err := peer.Send(t.Context(), r, nil)
					if err != nil {
						t.Fatal(err)
					}
					rules[i] = fmt.Sprint(a.Code, sortedRules(t, a.Body))
				}
				if diff := cmp.Diff(rules[0], rules[1]); diff != "" {
					t.Errorf("%s in %q (-kube-apiserver +tested):\n%s", client.Name, namespace, limit(diff, 2000))
				}
			}
		}
	})
}

// sortedRules returns the rules of a review sorted, because their order is random.
func sortedRules(t *testing.T, body []byte) []string {
	t.Helper()
	var review struct {
		Kind   string
		Status json.RawMessage
	}
	if err := json.Unmarshal(body, &review); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if review.Kind == "Status" {
		return []string{string(body)}
	}
	var s struct {
		ResourceRules, NonResourceRules []any
		Incomplete                      bool
		EvaluationError                 string
	}
	if err := json.Unmarshal(review.Status, &s); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	lines := []string{fmt.Sprint(s.Incomplete, s.EvaluationError)}
	for _, rule := range slices.Concat(s.ResourceRules, s.NonResourceRules) {
		lines = append(lines, fmt.Sprint(rule))
	}
	slices.Sort(lines)
	return lines
}

package parity

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"triune.dev/tests/hooks"
)

// shortAnswers are the answers with -short.
var shortAnswers = []string{"conflict", "cut", "huge", "patch-path", "unknown", "wrong-uid"}

// TestWebhookAnswers lets webhooks give every valid and invalid answer: as mutating and as
// validating ones, with both failure policies, and for an object of each tier.
func TestWebhookAnswers(t *testing.T) {
	site := newHookSite(t, [2]*Peer{peers.reference, peers.tested})
	p := site.newPair(t)
	p.createNamespace()
	p.same(Request{Do: "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", Unchecked: true, Object: thingDefinition()})
	p.same(Request{Do: "GET /apis/${ns}.example.com/v1/namespaces/${ns}/things", Until: "ThingList"})

	names := slices.Concat(slices.Collect(maps.Keys(hooks.NoReviews)), slices.Collect(maps.Keys(hookAnswers)))
	names = slices.DeleteFunc(names, func(name string) bool { return name == probing || name == "slow" })
	slices.Sort(names)
	if testing.Short() {
		names = shortAnswers
	}
	c := hookCase{}
	for _, kind := range []string{"mutating", "validating"} {
		for _, name := range names {
			for _, policy := range []string{"Fail", "Ignore"} {
				webhook := map[string]any{
					"name": strings.ToLower(policy) + "-" + name, "does": name, "failurePolicy": policy,
					"for":            []any{"CREATE core/v1/configmaps", "CREATE ${ns}.example.com/v1/things", "CREATE apiregistration.k8s.io/v1/apiservices"},
					"objectSelector": map[string]any{"matchLabels": map[string]any{"case": "${ns}", "type": kind, "answer": name, "policy": policy}},
				}
				if kind == "mutating" {
					c.Mutating = append(c.Mutating, webhook)
				} else {
					c.Validating = append(c.Validating, webhook)
				}
			}
		}
	}
	site.register(p, c)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			p := p.in(t)
			for _, kind := range []string{"mutating", "validating"} {
				for _, policy := range []string{"Fail", "Ignore"} {
					labels := map[string]any{"case": "${ns}", "type": kind, "answer": name, "policy": policy}
					for _, r := range labelled(strings.ToLower(policy)+"-"+name, labels) {
						asked, same := site.same(p, r)
						if asked == 0 {
							t.Errorf("%s: no webhook was asked", r.Do)
						}
						if !same {
							t.Logf("%s webhook, %s", kind, policy)
						}
					}
				}
			}
		})
	}
	p.same(Request{Do: "DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.${ns}.example.com", Unchecked: true})
}

// in returns the same conversation for a subtest.
func (p *pair) in(t *testing.T) *pair {
	part := *p
	part.t = t
	return &part
}

// labelled returns requests that create nothing: one for each tier, for an object with a
// name and labels.
func labelled(name string, labels map[string]any) []Request {
	metadata := map[string]any{"name": name, "labels": labels}
	return []Request{
		{Do: "POST /api/v1/namespaces/${ns}/configmaps?dryRun=All", Object: map[string]any{"metadata": metadata}},
		{Do: "POST /apis/${ns}.example.com/v1/namespaces/${ns}/things?dryRun=All", Object: map[string]any{
			"apiVersion": "${ns}.example.com/v1", "kind": "Thing", "metadata": metadata, "spec": map[string]any{"size": 1, "replicas": 1},
		}},
		// A controller writes the status.
		{Do: "POST /apis/apiregistration.k8s.io/v1/apiservices?dryRun=All", Volatile: []string{"status"}, Object: map[string]any{
			"metadata": map[string]any{"name": "v1.${ns}.example.net", "labels": labels},
			"spec": map[string]any{
				"group": "${ns}.example.net", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10, "insecureSkipTLSVerify": true,
				"service": map[string]any{"namespace": "${ns}", "name": "none"},
			},
		}},
	}
}

// thingDefinition returns the CRD of a case.
func thingDefinition() map[string]any {
	object := func(properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "properties": properties}
	}
	integer := map[string]any{"type": "integer"}
	return map[string]any{
		"metadata": map[string]any{"name": "things.${ns}.example.com"},
		"spec": map[string]any{
			"group": "${ns}.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": object(map[string]any{"spec": object(map[string]any{"size": integer, "replicas": integer})}),
			}}},
		},
	}
}
